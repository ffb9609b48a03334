"""Benchmarks: one claim each, run from the root of the repository."""
