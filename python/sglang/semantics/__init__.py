"""Meaning of steps of a program, for a client and a server alike: selects, reasoning, values."""
