"""Ints: a compact int32 sequence (``array('i')``), compared and sliced by memcmp and memcpy.

Token ids and page tables are Ints; torch and numpy read them without a copy. Floats are float32
(``array('f')``) or float64 (``array('d')``).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

if TYPE_CHECKING:
    Ints: TypeAlias = array[int]
    Floats: TypeAlias = array[float]
else:  # msgspec reads the types of fields, and ``array`` takes no parameters while a program runs
    Ints = Floats = array


def ints(values: Iterable[int] = ()) -> Ints:
    """Return a new int32 array. Raises OverflowError if a value does not fit into int32."""
    return array("i", values)


def from_bytes(data: bytes) -> Ints:
    """Return the array whose ``tobytes()`` is ``data``. Raises ValueError on a partial item."""
    out = array("i")
    out.frombytes(data)
    return out


def common_prefix(a: Ints, b: Ints, start: int = 0, offset: int = 0) -> int:
    """Return the length of the common prefix of ``a[start:]`` and ``b[offset:]``.

    Blocks of growing size are compared; then a binary search in the first block that differs.
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


def to_wire(value: object) -> msgspec.msgpack.Ext:
    """Encode an array as a MessagePack extension whose code is the array's type code. For
    ``msgspec.msgpack.Encoder(enc_hook=...)``. Raises NotImplementedError for other types."""
    if not isinstance(value, array):
        raise NotImplementedError(f"{type(value).__name__} cannot be sent; only arrays can")
    return msgspec.msgpack.Ext(ord(value.typecode), memoryview(value).cast("B"))


def from_wire(code: int, data: memoryview) -> array[int] | array[float]:
    """Decode an array that ``to_wire`` encoded. For ``msgspec.msgpack.Decoder(ext_hook=...)``.
    Raises ValueError for an unknown type code or a partial item."""
    out: array[int] | array[float] = array(chr(code))
    out.frombytes(data)
    return out
