"""Snapshot: the state of the engine as plain data for the live page: the most used part of the
radix tree, and the running and waiting requests."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sglang.srt.core.request import Request
from sglang.srt.core.segments import unmarked
from sglang.srt.engine.planner import Planner
from sglang.srt.memory.radix import RadixTree
from sglang.srt.memory.radix_node import RadixNode

MAX_ENTRIES = 1024  # nodes or requests in a list
TEXT_IDS = 16


def snapshot(
    planner: Planner,
    requests: Iterable[Request],
    stats: Mapping[str, float],
    limit: int,
    adapter: Callable[[int], str],
    now: float,
) -> dict[str, Any]:
    """Return at most ``limit`` nodes with their ancestors, and at most ``limit`` requests of each
    kind.

    Args:
        adapter: returns the name of an adapter by its number.
        now: current time of the engine's clock, in seconds.
    """
    limit = max(0, min(limit, MAX_ENTRIES))
    running = [*planner.running.values(), *planner.draining.values()]
    queued = [r for r in requests if r.id not in planner.running and r.id not in planner.draining]
    return {
        "tree": _tree(planner.store.tree, limit, now, adapter),
        "running": [_request(r, now) for r in running[:limit]],
        "waiting": [_request(r, now) for r in queued[:limit]],
        "parked": planner.parked.shown(limit),
        "compiling": len(queued) - len(planner.waiting),
        "stats": dict(stats),
    }


def _tree(tree: RadixTree, limit: int, now: float, adapter: Callable[[int], str]) -> dict[str, Any]:
    """Return the most used nodes: locked nodes first, then the most recently used, then the
    largest."""
    total = 0

    def counted() -> Iterable[RadixNode]:
        nonlocal total
        for node in tree.nodes():
            total += 1
            yield node

    hottest = heapq.nlargest(limit, counted(), key=lambda n: (n.locks > 0, n.used, len(n.tokens)))
    shown: dict[int, RadixNode] = {}
    for node in hottest:
        step: RadixNode | None = node
        while step is not None and step.number not in shown:
            shown[step.number] = step
            step = step.parent
    nodes = [_node(tree, node, now, adapter) for node in shown.values() if node.parent is not None]
    return {"nodes": nodes, "total_nodes": total, "shown": len(nodes)}


def _node(
    tree: RadixTree, node: RadixNode, now: float, adapter: Callable[[int], str]
) -> dict[str, Any]:
    assert node.parent is not None
    space = tree.namespace(node)
    return {
        "id": node.number,
        "parent": -1 if node.parent.parent is None else node.parent.number,
        "tokens": len(node.tokens),
        "depth": node.depth + len(node.tokens),
        "locks": node.locks,
        "children": len(node.children),
        "age": now - node.at,
        "text_ids": list(unmarked(node.tokens[:TEXT_IDS])),
        "namespace": space.salt,
        "adapter": adapter(space.adapter),
    }


def _request(request: Request, now: float) -> dict[str, Any]:
    return {
        "context": request.context.id,
        "request": request.id,
        "prompt": request.spec.prompt,
        "cached": request.stats.cached_tokens,
        "drawn": len(request.generation.tokens),
        "max_new_tokens": request.spec.limit,
        "work": request.context.work,
        "seconds": now - request.spec.received,
        "goal": type(request.spec.goal).__name__.lower(),
    }
