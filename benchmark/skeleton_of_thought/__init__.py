"""Skeleton of thought: short points first, then each in detail, all at once."""
