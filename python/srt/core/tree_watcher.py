"""TreeWatcher: observer of changes in a radix tree (``memory/radix``), by node numbers."""

from __future__ import annotations

from typing import Protocol

from sglang.srt.core.ints import Ints
from sglang.srt.core.namespace import Namespace


class TreeWatcher(Protocol):
    """Callbacks for changes of a tree's edges, implemented by ``kv_events/recorder``."""

    def stored(self, node: int, parent: int, tokens: Ints, space: Namespace | None) -> None:
        """Note an added edge with ``tokens``. ``space``: the namespace if ``parent`` is a root."""

    def split(self, node: int, upper: int, length: int) -> None:
        """Note a split: the first ``length`` tokens of an edge are now the edge of ``upper``."""

    def cut(self, node: int, count: int) -> None:
        """Note that an edge has lost its last ``count`` tokens, perhaps all."""

    def flush(self) -> None:
        """Note that the engine's loop ends a turn: send collected changes."""
