"""Hooks: what a measurement changes in an engine, or watches of it, until a context ends."""
