"""Ollama's API: its paths, bodies and lines of JSON."""
