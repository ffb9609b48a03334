"""Retrieval-augmented generation as a DSPy pipeline asks for it."""
