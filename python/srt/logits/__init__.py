"""Tokens and log-probabilities of logits: by torch, by kernels for GPUs, by NumPy and C++."""
