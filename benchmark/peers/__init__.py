"""Comparison of our engine with other people's: same weights, same work, in turns."""
