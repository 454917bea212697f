"""Dispatch policies: one class each, by name in `table`. Pure."""
