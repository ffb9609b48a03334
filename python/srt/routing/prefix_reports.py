"""Reports of an engine about its cache, in the order of their sequence numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from sglang.srt.routing.meta_tree import Holder, MetaTree
from sglang.srt.routing.prompt import PrefixPath, blocks_in


@dataclass(frozen=True, slots=True)
class PrefixStored:
    """An engine has a prefix in its cache."""

    path: PrefixPath


@dataclass(frozen=True, slots=True)
class PrefixEvicted:
    """An engine has evicted a prefix, except for its first ``kept`` tokens."""

    path: PrefixPath
    kept: int


PrefixEvent: TypeAlias = "PrefixStored | PrefixEvicted"


class PrefixReports:
    """The reports of one engine. ``last``: the last sequence number applied, -1 before the first.
    ``gap``: a report was lost, so the believed cache is wrong until the next snapshot."""

    __slots__ = ("cache", "gap", "last")

    def __init__(self, cache: Holder) -> None:
        self.cache = cache
        self.last = -1
        self.gap = False

    def apply(self, tree: MetaTree, sequence: int, events: Iterable[PrefixEvent]) -> bool:
        """Apply a report. The first report may have any number; a repeated report is ignored.
        Return False if a snapshot is needed. Until it comes, reports are ignored."""
        if 0 <= self.last < sequence - 1:
            self.gap = True
        if self.gap or sequence <= self.last:
            return not self.gap
        self.last = sequence
        for event in events:
            if isinstance(event, PrefixStored):
                tree.insert(event.path, self.cache)
            else:
                tree.lose(event.path, self.cache, blocks_in(event.kept))
        return True

    def replace(self, tree: MetaTree, sequence: int, paths: Iterable[PrefixPath]) -> bool:
        """Replace the believed cache by ``paths``, its content after report ``sequence``. The most
        recently used path comes last. Return False for an outdated snapshot."""
        if sequence < self.last:
            return False
        self.last, self.gap = sequence, False
        tree.forget(self.cache)
        for path in paths:
            tree.insert(path, self.cache)
        return True
