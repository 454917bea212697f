"""What talks to engines, or plays one: the only place that names an engine."""
