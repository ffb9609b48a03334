"""Kernels for NVIDIA GPUs, written in Triton.

    attention   decode (keys cut by length, shared prefixes read once) and extend over paged keys
                and values
    append      rotary, q/k norm and the write of new keys and values, fused
    norm        RMSNorm with the residual, gated activations
    moe         top-k routing, grouping of tokens by expert, grouped matrix products
    sampling    masks, penalties, top-k/top-p/min-p without a sort, the sample
    reference   the same functions by definition, in plain torch

Importing this package imports neither torch nor triton; importing a module of it imports both.
Every function is a plain launch: it takes tensors of one device, checks them, allocates what it
returns, never waits for the device and reads every length on it, so a CUDA graph may capture it.
"""

from __future__ import annotations

from importlib.util import find_spec


def missing() -> str:
    """Reason that the kernels cannot be used in this environment, "" where they can.

    Says nothing about the GPU: that is the caller's to ask torch.
    """
    for name in ("torch", "triton"):
        if find_spec(name) is None:
            return f"{name} is not installed (pip install '{name}')"
    return ""
