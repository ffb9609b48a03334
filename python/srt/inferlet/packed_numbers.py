"""Numbers of calls: lists, or int32 packed into bytes."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from sglang.srt.core.ints import Ints, from_bytes


def unpacked(values: Sequence[int] | bytes) -> Ints:
    """An int32 array. Raises ValueError where bytes end inside a number, or one is negative."""
    if not isinstance(values, bytes):
        return array("i", values)
    try:
        found = from_bytes(values)
    except ValueError as error:
        raise ValueError(f"{len(values)} bytes are no int32 numbers; give four for each") from error
    if found and min(found) < 0:
        raise ValueError(f"{min(found)} is negative; handles, slots and tokens start at 0")
    return found


def bit_mask(ids: Ints, size: int) -> bytes:
    """Bits of ``size`` token ids, low bit first, in whole little-endian words of 32."""
    words = bytearray((size + 31) // 32 * 4)
    for one in ids:
        words[one >> 3] |= 1 << (one & 7)
    return bytes(words)
