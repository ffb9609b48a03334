"""Retelling: reports a whole tree to a watcher that has missed changes."""

from __future__ import annotations

from sglang.srt.core.tree_watcher import TreeWatcher
from sglang.srt.memory.radix import RadixTree


def retell(tree: RadixTree, watcher: TreeWatcher) -> None:
    """Call ``watcher.stored`` for every edge of ``tree``, parents first."""
    for node in tree.nodes():
        parent = node.parent
        assert parent is not None
        space = tree.namespace(parent) if parent.parent is None else None
        watcher.stored(node.number, parent.number, node.tokens, space)
