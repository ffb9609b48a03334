"""RowTargets: converts log-probability requests inside a forward to outputs of its rows.

A row can score one token after each of its tokens (``RowScore``), and any number after its last
token (``Row.probe``). So a row must end at a token with several targets: a tree of texts has one
row for each branch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from sglang.srt.core.batch import RowScore
from sglang.srt.core.ints import from_bytes
from sglang.srt.spaces.handle_table import numbers
from sglang.srt.spaces.mask_runs import MaskRun

Array: TypeAlias = np.ndarray[Any, Any]
MOST_TARGETS = 1 << 16  # most targets of a forward


class RowTargets:
    """Targets of one forward.

    Args:
        ids: int32, in the order of the tokens that they follow.
        offsets: token ``i`` has the targets ``[offsets[i], offsets[i + 1])``, at least one.
    """

    def __init__(self, ids: Array, offsets: Array) -> None:
        self.ids = ids
        self._bytes, self._offsets = ids.tobytes(), offsets.tolist()
        self._ends = np.flatnonzero(np.diff(offsets) > 1).tolist()  # tokens with several

    @staticmethod
    def of(pairs: bytes, count: int) -> RowTargets:
        """Read ``ForwardTokens.targets`` of a forward of ``count`` tokens. Raises ValueError."""
        found = numbers(pairs, "targets")
        if len(found) % 2 or len(found) > 2 * MOST_TARGETS:
            raise ValueError(
                f"targets has {len(found)} numbers; give pairs (index, id), at most {MOST_TARGETS}"
            )
        indices, ids = found[::2], found[1::2]
        expected = np.arange(count, dtype=np.int32)
        if (np.diff(indices) < 0).any() or not np.array_equal(np.unique(indices), expected):
            raise ValueError(
                f"targets must name each of the {count} tokens by its index, in ascending order"
            )
        offsets = np.searchsorted(indices, np.arange(count + 1))
        return RowTargets(np.ascontiguousarray(ids), offsets)

    def cut(self, runs: Sequence[MaskRun], visible: int) -> list[MaskRun]:
        """Return the rows ``runs``, each cut after its tokens with several targets. ``visible``:
        number of the forward's visible slots, which come first in ``MaskRun.seen``."""
        found, at = list[MaskRun](), 0
        for run in runs:
            first, seen = run.first, run.seen
            while at < len(self._ends) and self._ends[at] < run.last:
                end = self._ends[at] + 1
                at += 1
                found.append(MaskRun(first, end, seen))
                own = np.arange(visible + first, visible + end, dtype=np.int32)
                first, seen = end, np.concatenate([seen, own])
            if first < run.last:
                found.append(MaskRun(first, run.last, seen))
        return found

    def of_row(self, first: int, last: int) -> tuple[RowScore | None, tuple[int, ...]]:
        """Return ``Row.score`` and ``Row.probe`` of a row of tokens ``[first, last)``. All tokens
        but the last must have exactly one target."""
        begin, end = self._offsets[first], self._offsets[last]
        if end - begin == last - first:
            return RowScore(0, from_bytes(self._bytes[4 * begin : 4 * end])), ()
        middle = begin + last - 1 - first
        score = None
        if middle > begin:
            score = RowScore(0, from_bytes(self._bytes[4 * begin : 4 * middle]))
        return score, tuple(from_bytes(self._bytes[4 * middle : 4 * end]))
