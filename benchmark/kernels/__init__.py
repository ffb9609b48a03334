"""Kernels of sgl-kernel, one by one, beside torch."""
