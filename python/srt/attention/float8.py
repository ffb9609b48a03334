"""Keys and values in float8 (e4m3), without scales, where plain torch reads and writes them.

Pools are passed on as bytes: copies by index of float8 are not implemented on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = 448.0


def as_bytes(pool: Tensor) -> Tensor:
    """The same memory, uint8 where it is float8."""
    return pool.view(torch.uint8) if pool.dtype == torch.float8_e4m3fn else pool


def narrow(x: Tensor, pool: Tensor) -> Tensor:
    """x as ``pool`` (of ``as_bytes``) holds it. What is larger than 448 becomes 448; NaN stays."""
    if pool.dtype != torch.uint8:
        return x
    return x.clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn).view(torch.uint8)


def widen(x: Tensor, dtype: torch.dtype) -> Tensor:
    """What ``narrow`` has made, in ``dtype``."""
    return x.view(torch.float8_e4m3fn).to(dtype) if x.dtype == torch.uint8 else x
