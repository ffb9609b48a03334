"""Cache: what a runtime finds of each prompt in its prefix cache, where nothing is evicted.

The rules are those of the runtime's radix cache:

- A request finds the longest prefix that any request before it has had computed, up to a limit: a
  token whose output is wanted is computed whatever the cache holds.
- What a request computes is there for the next one at once, in the same pass too. So the order of
  requests does not matter, except for those whose prompts begin one another.
- Hits and what is kept are whole pages.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

Units: TypeAlias = "array[int]"


def units(values: object = ()) -> Units:
    """An array of units, 64 bits each."""
    return array("q", values)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class Need:
    """Units that one request has a backend read and write.

    Attributes:
        prompt: its units.
        limit: the longest prefix that may come from the cache.
        kept: generated units after the prompt that stay in the cache.
        space: prompts share nothing across spaces (adapters).
    """

    prompt: Units
    limit: int
    kept: Units = field(default_factory=units)
    space: str = ""


class CacheNode:
    """An edge of the tree, and what hangs below; ``requests`` is how many prompts it is part of."""

    __slots__ = ("children", "edge", "requests")

    def __init__(self, edge: Units, requests: int) -> None:
        self.edge, self.requests = edge, requests
        self.children: dict[int, CacheNode] = {}


class Cache:
    """A radix tree over all that was read and written.

    Args:
        page_size: tokens a page.
        share: False: nothing is ever found.
    """

    def __init__(self, page_size: int = 1, share: bool = True) -> None:
        self._page_size, self._share = page_size, share
        self.roots: dict[str, CacheNode] = {}

    def read(self, need: Need) -> int:
        """Return the number of cached units of the prompt; afterwards all of ``need`` is cached."""
        found = self._add(need.space, need.prompt, 1)
        if need.kept:
            self._add(need.space, need.prompt + need.kept, 0)
        found = min(found, need.limit) if self._share else 0
        return found - found % self._page_size

    def nodes(self) -> Iterator[CacheNode]:
        """Every node with an edge."""
        stack = [child for root in self.roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def __len__(self) -> int:
        """Units held."""
        return sum(len(node.edge) for node in self.nodes())

    def _add(self, space: str, key: Units, requests: int) -> int:
        """Insert ``key``. Return the length that was cached. An edge ends where a prompt does."""
        node, at = self.roots.setdefault(space, CacheNode(units(), 0)), 0
        while at < len(key):
            child = node.children.get(key[at])
            if child is None:
                node.children[key[at]] = CacheNode(key[at:], requests)
                return at
            length = common(child.edge, key, at)
            if length < len(child.edge):
                upper = CacheNode(child.edge[:length], child.requests)
                child.edge = child.edge[length:]
                upper.children[child.edge[0]] = child
                node.children[key[at]] = child = upper
            child.requests += requests
            node, at = child, at + length
        return at


def common(edge: Units, key: Units, at: int) -> int:
    """Return the length of the common beginning of ``edge`` and ``key[at:]``."""
    low, high = 0, min(len(edge), len(key) - at)
    if edge[:high] == key[at : at + high]:
        return high
    while high - low > 1:  # the first ``low`` are alike, the first ``high`` are not
        middle = (low + high) // 2
        if edge[low:middle] == key[at + low : at + middle]:
            low = middle
        else:
            high = middle
    return low
