"""Leeway: decisions across replicas, and the server that carries them out."""

__version__ = "0.1.0"
