"""Arrays of the worker: NumPy's with native CPU kernels, torch's tensors elsewhere."""
