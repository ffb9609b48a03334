"""Skeleton of thought: short tips first, then each in detail, all at once."""
