"""The route that explains cache misses."""
