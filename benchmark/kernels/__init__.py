"""Kernels of sgl-kernel, one by one, against torch."""
