"""Gain in shared prompt tokens when the constant parts of a prompt are moved to the front."""
