"""Calls of tools in generated text: how models write them, and how they are read."""
