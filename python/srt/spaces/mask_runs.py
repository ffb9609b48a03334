"""Mask runs: splits a forward with a boolean attention mask into rows that need no mask.

With pages of one token, a page table is a list of visible slots. All keys of a pass are written
before any row attends. So one row per token can compute any mask. Consecutive tokens share a row if
each sees exactly what the token before sees, and that token.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]
MOST_BITS = 1 << 22  # most bits of a mask, which is unpacked to one byte a bit


class MaskRun(NamedTuple):
    """Tokens ``[first, last)`` of a forward in one row.

    ``seen``: indices, int32 and ascending, of the slots that all these tokens see before the first
    of them; indices count the visible slots, then the slots of the forward's tokens.
    """

    first: int
    last: int
    seen: Array


def mask_runs(mask: bytes, visible: int, count: int) -> list[MaskRun]:
    """Return the fewest rows that compute ``count`` tokens under a mask, in order.

    Args:
        mask: ``ForwardTokens.mask``; b"": tokens see all visible slots and the tokens before.
        visible: number of visible slots.

    Raises ValueError for a mask of another size, or with more than ``MOST_BITS`` bits.
    """
    if not mask:
        return [MaskRun(0, count, np.arange(visible, dtype=np.int32))]
    sees = unpacked(mask, visible, count)
    # A token continues a row where it sees what the token before it sees, and itself.
    breaks = np.flatnonzero((sees[1:] != sees[:-1]).sum(1) != 1) + 1
    firsts = [0, *breaks.tolist()]
    return [
        MaskRun(first, last, np.flatnonzero(sees[first, : visible + first]).astype(np.int32))
        for first, last in zip(firsts, [*firsts[1:], count])
    ]


def unpacked(mask: bytes, visible: int, count: int) -> Array:
    """Return the mask as bool [count, visible + count]: each token sees itself and no later one.
    Raises the errors of ``mask_runs``."""
    width = visible + count
    stride = -(-width // 8)
    if count * width > MOST_BITS:
        raise ValueError(
            f"a mask of {count} tokens by {width} slots has {count * width} bits; at most "
            f"{MOST_BITS}: compute the tokens in several forwards"
        )
    if len(mask) != count * stride:
        raise ValueError(
            f"the mask has {len(mask)} bytes; {count} tokens that may see {width} slots need "
            f"{stride} bytes each"
        )
    rows = np.frombuffer(mask, dtype=np.uint8).reshape(count, stride)
    sees = np.unpackbits(rows, axis=1, count=width, bitorder="little").view(np.bool_)
    own = np.tri(count, dtype=np.bool_)
    sees[:, visible:] &= own
    sees[np.arange(count), visible + np.arange(count)] = True
    return sees
