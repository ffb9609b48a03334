"""Recorder: what an engine does, request by request and pass by pass, in counts and moments."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sglang.srt.core.context import Context
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.messages import Event, Fill
from sglang.srt.core.namespace import Namespace
from sglang.srt.core.request import Request
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.planned_pass import PlannedPass

from benchmark.harness.hooks.patch import patched


@dataclass
class Seen:
    """One request that was admitted.

    Attributes:
        hint: it wants no output, only that its prompt is computed.
        prompt: its prompt's tokens; limit: of these, the most that could come from the cache.
        cached: prompt tokens that did, when it was first admitted.
        computed: prompt tokens that went through a pass, those of a retracted request again.
        key: its key in the cache, of prompt and generated tokens, when it had ended.
        most: tokens that it was allowed to generate.
        received, first, ended: time.monotonic() of its arrival, its first sampled token (0: none)
            and its end.
    """

    namespace: Namespace
    hint: bool
    prompt: int
    limit: int
    most: int
    received: float
    cached: int = 0
    computed: int = 0
    key: Ints = field(default_factory=ints)
    first: float = 0.0
    ended: float = 0.0


@dataclass
class Recorder:
    """``requests`` in the order they were first admitted; ``batches``: requests of each pass."""

    requests: list[Seen] = field(default_factory=list)
    batches: list[int] = field(default_factory=list)


@contextmanager
def recording(engine: EngineCore) -> Iterator[Recorder]:
    """Record the requests of ``engine`` from now on. Begin and end it while no request is in
    flight; laid over other hooks, it records their effects."""
    watch = _Watch(engine)
    with (
        patched(engine.store, acquire=watch.acquire, advance=watch.advance),
        patched(engine.planner, plan=watch.plan, drop=watch.drop),
        patched(engine._collector, collect=watch.collect),
    ):
        yield watch.recorder


class _Watch:
    """Stands before the engine's parts: each method does what the part's does and takes notes."""

    def __init__(self, engine: EngineCore) -> None:
        self.recorder = Recorder()
        self._engine = engine
        self._acquire, self._advance = engine.store.acquire, engine.store.advance
        self._plan, self._drop = engine.planner.plan, engine.planner.drop
        self._collect = engine._collector.collect
        self._seen: dict[int, Seen] = {}  # by request id, until it ends

    def acquire(self, context: Context, limit: int) -> int:
        request = self._engine.requests[context.id]
        new = request.id not in self._seen
        if new:
            spec = request.spec
            self._seen[request.id] = Seen(
                context.namespace, isinstance(spec.goal, Fill), spec.prompt,
                min(limit, spec.prompt), spec.limit, spec.received,
            )  # fmt: skip
            self.recorder.requests.append(self._seen[request.id])
        gained = self._acquire(context, limit)
        if new:
            self._seen[request.id].cached = min(context.saved, request.spec.prompt)
        return gained

    def advance(self, context: Context, count: int, publish: bool) -> None:
        request = self._engine.requests[context.id]
        start = context.saved
        self._advance(context, count, publish)
        seen = self._seen[request.id]
        seen.computed += max(min(start + count, request.spec.prompt) - start, 0)

    def plan(self, under_way: PlannedPass | None = None) -> PlannedPass:
        planned = self._plan(under_way)
        if planned.parts:
            self.recorder.batches.append(len(planned.parts))
        return planned

    def collect(self, request: Request, *rest: Any) -> Sequence[Event]:
        events = self._collect(request, *rest)
        seen = self._seen.get(request.id)
        if seen is not None and not seen.first and request.generation.tokens:
            seen.first = time.monotonic()
        return events

    def drop(self, request: Request) -> None:
        seen = self._seen.pop(request.id, None)
        if seen is not None:
            seen.key, seen.ended = request.context.key[: request.known], time.monotonic()
        self._drop(request)
