"""Backends under upstream's module names."""
