"""Kernels of sglang.

    arrays    what kernels read and write: arrays of NumPy and tensors of torch
    native    whether the C++ part is here, which instruction set runs, how many threads
    packed    weights packed for products on a CPU, and the product
    paged     rotary embedding, KV pools and attention over pages, on a CPU
    rows      norms, gates and sampling, on a CPU
    tape      a forward pass of the above, recorded once and run in one call
    reference the same in plain torch: what the others are held to, and what runs without a compiler
    triton    kernels for GPUs

Importing the package imports neither torch nor triton; ``reference`` and ``triton`` do.
"""

__version__ = "0.1.0"
