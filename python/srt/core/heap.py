"""Heap: returns memory that C code has freed to the operating system.

The functions call glibc; with another C library they do nothing.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt


def trim() -> None:
    """Return freed memory to the system. Call after large work, in any thread. It takes
    milliseconds, during which other threads run.

    glibc keeps freed memory for the thread that freed it: gigabytes after tokenizing megabytes.
    """
    if (found := _trimmer()) is not None:
        found(0)


@cache
def _trimmer() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return None
    return found


@contextmanager
def returned_at_once() -> Iterator[None]:
    """Return large blocks to the system at once, inside the context: weights are read, packed
    and dropped one by one, and a heap that keeps freed blocks would hold all weights twice. After
    the context the heap keeps large blocks (glibc's default), since passes reuse the same sizes.
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
