"""Heap: what libraries in C have freed is given back to the system."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


def trim() -> None:
    """Give freed memory back after large work, in any thread; takes milliseconds, in which other
    threads run.

    glibc keeps what a thread has freed for that thread: gigabytes, once it has tokenized megabytes.
    With another C library nothing is done.
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
