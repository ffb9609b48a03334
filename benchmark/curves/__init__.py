"""Throughput of our engine by batch, context and cache hits."""
