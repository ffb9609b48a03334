"""Chaos: a program or requests again and again, while faults are made; and what was lost."""
