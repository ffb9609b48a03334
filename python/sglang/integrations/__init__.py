"""Adapters that let other frameworks call a backend."""
