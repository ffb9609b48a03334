"""Ints: a compact int32 sequence (``array('i')``), compared and sliced by memcmp and memcpy.

Token ids and page tables live in it; torch and numpy read it without a copy. Floats are float32
(``array('f')``) or float64 (``array('d')``).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TypeAlias

Ints: TypeAlias = "array[int]"
Floats: TypeAlias = "array[float]"


def ints(values: Iterable[int] = ()) -> Ints:
    """A new int32 array. Raises OverflowError where a value does not fit."""
    return array("i", values)


def from_bytes(data: bytes) -> Ints:
    """The array whose ``tobytes()`` is ``data``. Raises ValueError on a partial item."""
    out = array("i")
    out.frombytes(data)
    return out


def common_prefix(a: Ints, b: Ints, start: int = 0, offset: int = 0) -> int:
    """Length of the common prefix of ``a[start:]`` and ``b[offset:]``.

    Compares fast growing blocks, then halves the first block that differs.
    """
    limit = min(len(a) - start, len(b) - offset)
    if limit <= 0:
        return 0
    done, block = 0, 16
    while done < limit:
        size = min(block, limit - done)
        if a[start + done : start + done + size] != b[offset + done : offset + done + size]:
            break
        done += size
        block *= 16
    else:
        return limit
    low, high = done, done + size  # equal before low, a difference before high
    while high - low > 1:
        mid = (low + high) // 2
        if a[start + low : start + mid] == b[offset + low : offset + mid]:
            low = mid
        else:
            high = mid
    return low
