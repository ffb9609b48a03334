"""TreeWatcher: follows the edges of a radix tree (``memory/radix``), by numbers of its nodes."""

from __future__ import annotations

from typing import Protocol

from sglang.srt.core.ints import Ints
from sglang.srt.core.namespace import Namespace


class TreeWatcher(Protocol):
    """Is called where the edges of a tree change; ``kv_events/recorder`` is one."""

    def stored(self, node: int, parent: int, tokens: Ints, space: Namespace | None) -> None:
        """An edge was added; ``space``: where ``parent`` is a root."""

    def split(self, node: int, upper: int, length: int) -> None:
        """The first ``length`` tokens of an edge became one of their own, ``upper``."""

    def cut(self, node: int, count: int) -> None:
        """An edge lost its last ``count`` tokens, perhaps all."""

    def flush(self) -> None:
        """The engine's loop ends a turn."""
