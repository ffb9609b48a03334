"""A small fixed question about the order of eviction."""

from __future__ import annotations

from sglang.srt.core.ints import ints
from sglang.srt.core.namespace import BASE
from sglang.srt.memory.pages import PagePool
from sglang.srt.memory.radix import RadixTree


def evicts_least_recently_used() -> bool:
    """Three leaves, used in the order 0, 1, 2, then 0 again: 1 must go first, then 2, then 0."""
    pool = PagePool(12)
    tree = RadixTree(pool, 1)
    keys = [ints([number] * 4) for number in range(3)]
    for key in keys:
        node, _ = tree.lock(key, 4, BASE)
        tree.unlock(tree.publish(node, key, 0, pool.take(4))[0])
    tree.unlock(tree.lock(keys[0], 4, BASE)[0])
    gone: list[list[int]] = []
    while tree.evict(4):
        left = [number for number, key in enumerate(keys) if tree.match(key, 4, BASE)[0]]
        gone.append([n for n in range(3) if n not in left and not any(n in g for g in gone)])
    return gone == [[1], [2], [0]]
