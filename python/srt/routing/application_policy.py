"""Parrot's Algorithm 1 (``call_placement``) for a router that sends each call at its arrival.

The algorithm's queue holds only the new call; earlier calls count as running on their engines. So
members of a task group, which arrive one by one, stay together if they share prefixes. Otherwise
they spread over the engines that lose no capacity. If no engine has room, the call waits at the
engine whose limit it exceeds least.
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
    """Choose the engine of a call. Return None for a request that is not a call of an application.
    Linear in the number of engines."""
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
    """Return the call of a prompt; None if the prompt has neither hint nor prefixes."""
    prompt = choice.prompt
    if prompt.hint is None and not prompt.prefixes:
        return None
    generated = int(choice.engines.averages.generated) + 1
    tokens = len(prompt.tokens) + min(prompt.new_tokens or generated, generated)
    return QueuedCall(0, choice.now, tokens, prompt.prefixes, prompt.hint)


def view_of(engine: RoutedEngine, latency_share: float) -> EngineView:
    """Return the facts about an engine that a placement uses."""
    capacity = engine.cache.capacity
    latency = max(int(latency_share * capacity), 1)
    return EngineView(engine.name, capacity, latency, engine.live, engine.sensitive > 0)


def least_beyond(call: QueuedCall, views: Sequence[EngineView], store: PrefixStore) -> str:
    """Return the name of the engine whose limit the call exceeds least, relative to the limit. Only
    engines that lose no capacity are considered, or all if there are none."""
    kept = [view for view in views if not capacity_lost(view, call.sensitive)] or views

    def beyond(view: EngineView) -> float:
        return (view.load + missed([call], view.name, store)) / view.limit(call.sensitive)

    return min(kept, key=beyond).name
