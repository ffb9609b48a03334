"""Lowering: a program's graph as a submission, which a server runs whole."""
