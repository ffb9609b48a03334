"""Sampling and log-probabilities from logits: by torch, by GPU kernels, by NumPy and C++."""
