"""The page at /, and what its live view shows."""
