"""Cache: a model of a runtime's prefix cache, for forecasts of cached tokens. Nothing is evicted.

The rules are those of the runtime's radix cache:

- A request gets the longest prefix that any earlier request has computed, up to a limit. A token
  whose output is requested is always computed.
- The KV of a request is available to the next request at once, also in the same pass. So the order
  of requests does not matter, except if one prompt is a prefix of another.
- Hits and cached sequences are whole pages.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

Units: TypeAlias = "array[int]"


def units(values: object = ()) -> Units:
    """Return an array of units (token numbers), 64 bits each."""
    return array("q", values)  # type: ignore[call-overload, no-any-return]


@dataclass(frozen=True)
class Need:
    """Units that one request makes a backend read and write.

    Attributes:
        prompt: units of the prompt.
        limit: length of the longest prefix that may come from the cache.
        kept: generated units after the prompt that stay in the cache.
        space: name of the adapter; prompts of different spaces share nothing.
    """

    prompt: Units
    limit: int
    kept: Units = field(default_factory=units)
    space: str = ""


class CacheNode:
    """A node of the tree with the edge to it. ``requests`` is the number of prompts that contain
    the edge."""

    __slots__ = ("children", "edge", "requests")

    def __init__(self, edge: Units, requests: int) -> None:
        self.edge, self.requests = edge, requests
        self.children: dict[int, CacheNode] = {}


class Cache:
    """A radix tree over all units that were read and written.

    Args:
        page_size: tokens of a page.
        share: False: no prefix is ever cached.
    """

    def __init__(self, page_size: int = 1, share: bool = True) -> None:
        self._page_size, self._share = page_size, share
        self.roots: dict[str, CacheNode] = {}

    def read(self, need: Need) -> int:
        """Return the number of cached units of the prompt, and add all of ``need`` to the cache."""
        found = self._add(need.space, need.prompt, 1)
        if need.kept:
            self._add(need.space, need.prompt + need.kept, 0)
        found = min(found, need.limit) if self._share else 0
        return found - found % self._page_size

    def nodes(self) -> Iterator[CacheNode]:
        """Yield every node except the roots."""
        stack = [child for root in self.roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def __len__(self) -> int:
        """Return the number of units in the cache."""
        return sum(len(node.edge) for node in self.nodes())

    def _add(self, space: str, key: Units, requests: int) -> int:
        """Insert ``key`` and return the length that was cached. Edges end where prompts end."""
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
    while high - low > 1:  # the first ``low`` units are equal, the first ``high`` are not
        middle = (low + high) // 2
        if edge[low:middle] == key[at + low : at + middle]:
            low = middle
        else:
            high = middle
    return low
