"""TreeRecorder: notes the changes of a radix tree, and hands them on once a pass.

It runs in the engine's loop, so it copies token ids and computes nothing. What it hands on waits in
a bounded queue; where that is full, changes are dropped, and once there is room the whole tree is
recorded again, so that what is published is right again.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from typing import NamedTuple

from sglang.srt.core.ints import Ints
from sglang.srt.core.namespace import Namespace
from sglang.srt.core.tree_watcher import TreeWatcher
from sglang.srt.kv_events.block_index import (
    BlockScope,
    EdgeChange,
    EdgeCut,
    EdgeSplit,
    EdgeStored,
    TreeCleared,
)


class RecordedPass(NamedTuple):
    """The changes of a pass, and the number of passes before it whose changes were dropped."""

    changes: list[EdgeChange]
    dropped: int


Retell = Callable[[TreeWatcher], None]
"""Calls ``stored`` for every edge of a tree, parents first."""


class TreeRecorder:
    """The watcher of one tree.

    Args:
        retell: shows it whole.
        queue: takes what was recorded.
        most: passes that may wait in it.
        name_of: name of an adapter by its number.

    Attributes:
        dropped: passes whose changes were dropped, since the start.
    """

    def __init__(
        self,
        retell: Retell,
        queue: SimpleQueue[RecordedPass | None],
        most: int,
        name_of: Callable[[int], str],
    ) -> None:
        self.dropped = 0
        self._retell, self._queue, self._most, self._name_of = retell, queue, most, name_of
        self._changes: list[EdgeChange] = [
            TreeCleared()
        ]  # an engine before this one may have published
        self._gap = 0  # passes dropped since the last one that was handed on

    def stored(self, node: int, parent: int, tokens: Ints, space: Namespace | None) -> None:
        """An edge was added; ``space``: where ``parent`` is a root."""
        scope = None
        if space is not None:
            scope = BlockScope(space.salt, space.adapter, self._name_of(space.adapter))
        self._changes.append(EdgeStored(node, parent, tokens[:], scope))

    def split(self, node: int, upper: int, length: int) -> None:
        """The first ``length`` tokens of an edge became one of their own, ``upper``."""
        self._changes.append(EdgeSplit(node, upper, length))

    def cut(self, node: int, count: int) -> None:
        """An edge lost its last ``count`` tokens."""
        self._changes.append(EdgeCut(node, count))

    def flush(self) -> None:
        """Hand on what was recorded since the last call."""
        if not self._changes and not self._gap:
            return
        if self._queue.qsize() >= self._most:
            if self._changes:
                self._changes.clear()
                self._gap += 1
                self.dropped += 1
            return
        if self._gap:
            self._changes = [TreeCleared()]
            self._retell(self)
        self._queue.put(RecordedPass(self._changes, self._gap))
        self._changes, self._gap = [], 0
