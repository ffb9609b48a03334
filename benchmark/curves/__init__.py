"""How our engine's throughput changes with batch, context and cache hits."""
