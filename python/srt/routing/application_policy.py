"""Algorithm 1 (``call_placement``) for a router that sends each call on when it comes.

The queue is the call alone: calls that came before count as running where they were sent. So the
members of a task group, which come one by one, stay together as far as they share prefixes, and
spread over the engines that lose no capacity otherwise. Where no engine has room, the call waits at
the one that is least beyond its limit.
"""

from __future__ import annotations

from collections.abc import Sequence

from sglang.srt.routing.call_placement import (
    CallPlacement,
    EngineView,
    QueuedCall,
    capacity_lost,
    missed,
)
from sglang.srt.routing.choice import Choice
from sglang.srt.routing.prefix_store import PrefixStore
from sglang.srt.routing.routed_engine import RoutedEngine


def placed_call(choice: Choice) -> RoutedEngine | None:
    """Return the engine of a call; None for a request that is no call of an application. Linear in
    the engines."""
    call = queued_call(choice)
    if call is None:
        return None
    engines = {engine.name: engine for engine in choice.permitted()}
    memory = choice.applications
    views = [view_of(engine, memory.latency_share) for engine in engines.values()]
    placement = CallPlacement(views, memory.store)
    placement.schedule([call])
    name = placement.placed.get(call.id)
    if name is None:
        name = least_beyond(call, views, memory.store)
        memory.store.add(call.prefixes, name)
    return engines[name]


def queued_call(choice: Choice) -> QueuedCall | None:
    """Return the call that a prompt is of, None where it has neither hint nor prefixes."""
    prompt = choice.prompt
    if prompt.hint is None and not prompt.prefixes:
        return None
    generated = int(choice.engines.averages.generated) + 1
    tokens = len(prompt.tokens) + min(prompt.new_tokens or generated, generated)
    return QueuedCall(0, choice.now, tokens, prompt.prefixes, prompt.hint)


def view_of(engine: RoutedEngine, latency_share: float) -> EngineView:
    """Return an engine as a placement sees it."""
    capacity = engine.cache.capacity
    latency = max(int(latency_share * capacity), 1)
    return EngineView(engine.name, capacity, latency, engine.live, engine.sensitive > 0)


def least_beyond(call: QueuedCall, views: Sequence[EngineView], store: PrefixStore) -> str:
    """Return the engine whose limit the call exceeds least, in shares of the limit, among those
    that lose no capacity; among all where there are none."""
    kept = [view for view in views if not capacity_lost(view, call.sensitive)] or views

    def beyond(view: EngineView) -> float:
        return (view.load + missed([call], view.name, store)) / view.limit(call.sensitive)

    return min(kept, key=beyond).name
