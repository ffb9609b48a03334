"""Control: what an engine answers outside of requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang.srt.core.messages import Control, LoadAdapter, Reply, UnloadAdapter
from sglang.srt.engine.view import view

OPS = ("stats", "flush", "ping", "tree", "pause", "retract", "continue")

if TYPE_CHECKING:
    from sglang.srt.engine.engine import Engine


def control(engine: Engine, verb: Control | LoadAdapter | UnloadAdapter) -> list[Reply]:
    """The answer; none yet to a verb about adapters that has begun (``Adapters.settle``)."""
    if isinstance(verb, LoadAdapter):
        reply = engine.adapters.load(verb)
    elif isinstance(verb, UnloadAdapter):
        reply = engine.adapters.unload(verb)
    else:
        reply = _answer(engine, verb)
    return [] if reply is None else [reply]


def _answer(engine: Engine, verb: Control) -> Reply:
    if verb.op == "stats":
        return Reply(verb.id, data=stats_of(engine))
    if verb.op == "flush":
        held = len(engine.running) + len(engine.planner.draining)
        busy = held if engine.paused else len(engine.requests)  # what waits holds no memory
        if busy:
            return Reply(verb.id, False, f"{busy} requests are under way; flush when idle")
        return Reply(verb.id, data={"tokens": engine.store.flush()})
    if verb.op == "ping":
        return Reply(verb.id)
    if verb.op in ("pause", "retract", "continue"):
        engine.paused = verb.op != "continue"
        if verb.op == "retract":
            engine.planner.retract([r for r in engine.running.values() if r.context.active])
        return Reply(verb.id)
    if verb.op == "tree":
        seen = view(
            engine.planner, engine.requests.values(), stats_of(engine), verb.limit,
            engine.adapters.name, engine.clock.now(),
        )  # fmt: skip
        return Reply(verb.id, data=seen)
    return Reply(verb.id, False, f"unknown control {verb.op!r}; use {', '.join(OPS)}")


def stats_of(engine: Engine) -> dict[str, float]:
    """Counters since the start and gauges of this moment."""
    store, size = engine.store, engine.info.page_size
    return {
        **engine.stats.as_dict(),
        "running": len(engine.running) + len(engine.planner.draining),
        "waiting": len(engine.waiting),
        "paused": int(engine.paused),
        **engine.compile_counts,
        **engine.adapters.counts,
        "contexts": len(store.contexts),
        "free_tokens": store.pool.free * size,
        "evictable_tokens": store.tree.evictable * size,
        "protected_tokens": store.protected * size,
        "total_tokens": store.pool.size * size,
        "evicted_tokens": store.tree.evicted * size,
    }
