"""Claim: the cache-aware orders reach the least number of computed tokens."""
