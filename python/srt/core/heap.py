"""Heap: memory that code in C has freed, and when it is given back to the system.

What is called is glibc; with another C library nothing is done.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt


def trim() -> None:
    """Give freed memory back after large work, in any thread; takes milliseconds, in which other
    threads run.

    glibc keeps what a thread has freed for that thread: gigabytes, once it has tokenized megabytes.
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
