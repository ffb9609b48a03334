"""Misses: explains why the rest of a prompt was not in the cache, without changing the tree."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from sglang.srt.core.ints import Ints, common_prefix
from sglang.srt.core.namespace import Namespace
from sglang.srt.core.request_stats import CacheMiss
from sglang.srt.core.segments import unmarked
from sglang.srt.memory.radix import RadixTree
from sglang.srt.memory.radix_node import RadixNode

SHOWN = 16  # most tokens shown after the page that differs from the prompt
MAX_NAMESPACES = 64  # most other namespaces searched
MAX_CHILDREN = 16  # most children compared: the newest


def miss_of(tree: RadixTree, tokens: Ints, limit: int, namespace: Namespace) -> CacheMiss:
    """Explain why the tree has no longer prefix of ``tokens[:limit]``. Call this before the tree
    is changed for ``tokens``."""
    path = list(tree.walk(tokens, limit, namespace))
    matched = sum(length for _, length in path)
    found = CacheMiss(matched, limit)
    if limit - matched < tree.page_size:
        return found
    _find_evicted(tree, tokens, namespace, path, found)
    if path:
        found.cached_next = list(
            unmarked(_instead(*path[-1], tokens[matched : matched + tree.page_size]))
        )
    spaces = [space for space in islice(tree.namespaces, MAX_NAMESPACES) if space != namespace]
    known = [(tree.match(tokens, limit, space)[0], space.salt) for space in spaces]
    found.other = _more(matched, (length for length, _ in known))
    found.adapter = _more(matched, (length for length, salt in known if salt == namespace.salt))
    return found


def _more(matched: int, lengths: Iterable[int]) -> int:
    """Return the largest of ``lengths`` if it is above ``matched``, else 0."""
    most = max(lengths, default=0)
    return most if most > matched else 0


def _find_evicted(
    tree: RadixTree,
    tokens: Ints,
    namespace: Namespace,
    path: list[tuple[RadixNode, int]],
    found: CacheMiss,
) -> None:
    """Set ``found.evicted``, ``why`` and ``evicted_ago`` from edges evicted along the path."""
    starts = [(node.depth, node.mark) for node, _ in path if node.parent is not None] or [(0, 0)]
    if path and path[-1][1] == len(path[-1][0].tokens):
        node = path[-1][0]
        starts.append((node.depth + len(node.tokens), node.sum))
    for depth, mark in starts:
        end, edge = tree.lost.follow(namespace, tokens, found.limit, depth, mark)
        if edge is not None and end - found.matched > found.evicted:
            found.evicted, found.why = end - found.matched, edge.why
            found.evicted_ago = tree.clock.now() - edge.at


def _instead(node: RadixNode, length: int, wanted: Ints) -> Ints:
    """Return the tokens that the cache has after the match instead of ``wanted``: those of the
    child with the longest common prefix, or of several such the most recently used."""
    count = len(wanted) + SHOWN
    if length < len(node.tokens):
        return node.tokens[length : length + count]
    children = list(islice(reversed(node.children.values()), MAX_CHILDREN))
    if not children:
        return node.tokens[:0]
    nearest = max(children, key=lambda child: (common_prefix(child.tokens, wanted), child.used))
    return nearest.tokens[:count]
