"""Settings of malloc: what the C library does with freed memory while a model is loaded."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager

# mallopt of glibc.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


@contextmanager
def returned_at_once() -> Iterator[None]:
    """Inside, large blocks go back to the system when they are freed: matrices are read, packed and
    dropped one after the other, and a heap that keeps them would hold the weights twice. Afterwards
    they are kept, as glibc does by itself once it has seen them: passes use the same sizes again.
    """
    mallopt = None
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        yield
        return
    mallopt(M_MMAP_THRESHOLD, 256 << 10)
    try:
        yield
    finally:
        mallopt(M_MMAP_THRESHOLD, 32 << 20)
        mallopt(M_TRIM_THRESHOLD, 64 << 20)
