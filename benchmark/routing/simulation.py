"""Simulation: the real router before engines in virtual time.

Several fronts may route, each with a router of its own that sees only its share of the requests.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

from sglang.srt.routing.prefix_reports import PrefixEvent, PrefixEvicted, PrefixStored
from sglang.srt.routing.prompt import PrefixPath, RoutedPrompt, path_of
from sglang.srt.routing.router import Router

from benchmark.routing.outcome import Answered, Outcome
from benchmark.routing.served_engine import NEVER, Machine, Served, ServedEngine


class Traffic(Protocol):
    """Requests in the order of moments that are never later than they are due."""

    @property
    def seconds(self) -> float: ...

    def requests(self) -> Iterator[tuple[float, Served]]: ...


@dataclass(frozen=True)
class Setting:
    """A fleet and its routers.

    Attributes:
        delay: seconds after which engines' reports reach the routers; infinity: never.
        stored: whether engines report what they store too, for routers that did not send it.
        keys: whether clients send a key of their conversation.
        homes: whether requests name the engine of the conversation's last answer.
    """

    policy: str = "predicted"
    engines: int = 4
    fronts: int = 1
    machine: Machine = field(default_factory=Machine)
    delay: float = NEVER
    stored: bool = False
    keys: bool = False
    homes: bool = False
    seed: int = 0


class Simulation:
    """A run. A fault is a function that is called at a moment (``at``)."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.now = 0.0
        self.engines: dict[str, ServedEngine] = {}
        self.fronts = [self._router(n) for n in range(setting.fronts)]
        self.outcome = Outcome()
        self._last: dict[str, str] = {}  # engine of a conversation's last answer
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._wakes: list[tuple[float, int, ServedEngine]] = []
        self._numbers = itertools.count()
        self._turn = itertools.count()
        self._sequences: dict[str, int] = {}
        for index in range(setting.engines):
            self.add_engine(f"e{index}")

    def _router(self, number: int) -> Router:
        setting = self.setting
        return Router(setting.policy, setting.seed + number, shared=setting.fronts > 1)

    def at(self, moment: float, act: Callable[[], None]) -> None:
        """Call a function at a moment."""
        heapq.heappush(self._events, (moment, next(self._numbers), act))

    def run(self, traffic: Traffic) -> Outcome:
        """Play all requests to their end."""
        first = traffic.requests()
        coming = next(first, None)
        while True:
            wake = self._wakes[0][0] if self._wakes else NEVER
            event = self._events[0][0] if self._events else NEVER
            start = coming[0] if coming is not None else NEVER
            if min(wake, event, start) == NEVER:
                return self.outcome
            if coming is not None and start <= min(wake, event):
                self._plan(coming[1])
                coming = next(first, None)
            elif event <= wake:
                moment, _, act = heapq.heappop(self._events)
                self.now = max(moment, self.now)
                act()
            else:
                moment, _, engine = heapq.heappop(self._wakes)
                if moment == engine.next_at:
                    self.now = moment
                    self._advance(engine)

    # -- faults ----------------------------------------------------------------------------------

    def add_engine(self, name: str) -> None:
        """Start an empty engine."""
        engine = self.engines[name] = ServedEngine(name, self.setting.machine)
        engine.clock.advance(self.now)
        self._sequences.setdefault(name, 0)
        if self.setting.delay < NEVER:
            engine.evicted = lambda tokens, kept: self._report(
                engine, PrefixEvicted(path_of(tokens), kept)
            )
        self._join(engine)

    def lose_engine(self, name: str) -> None:
        """Kill an engine. Its requests go on elsewhere, with the tokens that they have."""
        engine = self.engines.pop(name)
        engine.next_at = NEVER
        for front in self.fronts:
            front.remove(name)
        self._resend(engine)

    def cut_off(self, name: str) -> None:
        """Partition: the routers do not reach an engine, which goes on with what it has."""
        engine = self.engines[name]
        for front in self.fronts:
            front.remove(name)
        self._resend(engine)

    def reach(self, name: str) -> None:
        """End a partition. The routers take the engine's snapshot where engines report."""
        self._join(self.engines[name])

    def drain(self, name: str) -> None:
        """Send no more requests to an engine, which ends those it has."""
        del self.engines[name]
        for front in self.fronts:
            front.remove(name)

    def restart_router(self, index: int) -> None:
        """Lose all that a router knows. Its requests are not disturbed."""
        router = self._router(100 + index)
        self.fronts[index] = router
        for engine in self.engines.values():
            self._join_one(router, engine)

    def _join(self, engine: ServedEngine) -> None:
        for router in self.fronts:
            self._join_one(router, engine)

    def _join_one(self, router: Router, engine: ServedEngine) -> None:
        router.add(engine.name, engine.machine.capacity, engine.machine.slots)
        if self.setting.delay < NEVER:
            router.snapshot(engine.name, self._sequences[engine.name], snapshot(engine))

    def _resend(self, engine: ServedEngine) -> None:
        """Send an engine's requests again. What becomes of the first ones is not counted."""
        for request in engine.requests:
            if request.router is not None:
                again = replace(request, prompt=request.prompt + engine.generated(request))
                request.router = request.follow = None
                self.at(self.now, lambda again=again: self._send(again))  # type: ignore[misc]

    # -- requests --------------------------------------------------------------------------------

    def _plan(self, request: Served) -> None:
        self.at(request.due, lambda: self._send(request))

    def _send(self, request: Served) -> None:
        setting, last = self.setting, self._last.get(request.talk, "")
        request.front = next(self._turn) % len(self.fronts)
        router = request.router = self.fronts[request.front]
        prompt = RoutedPrompt(
            request.tokens[: request.prompt],
            affinity=request.talk if setting.keys else "",
            home=last if setting.homes and last in self.engines else "",
        )
        again = request.ticket is not None
        begin = time.process_time()
        ticket = request.ticket = router.choose(prompt, self.now)
        self.outcome.choosing += time.process_time() - begin
        self.outcome.chosen += 1
        if last and not again:
            request.moved = last != ticket.engine
        if request.talk:
            self._last[request.talk] = ticket.engine
        engine = self.engines[ticket.engine]
        engine.submit(request, self.now)
        self._wake(engine)

    def _advance(self, engine: ServedEngine) -> None:
        begun, ended = engine.advance(self.now)
        for request in begun:
            if request.router is not None and request.ticket is not None:
                request.router.first_token(request.ticket, self.now, request.cached)
                if self.setting.stored:
                    self._report(engine, PrefixStored(path_of(request.tokens[: request.prompt])))
        for request in ended:
            if request.router is not None and request.ticket is not None:
                answer = len(request.tokens) - request.prompt
                request.router.ended(request.ticket, self.now, answer)
                if self.setting.stored:
                    self._report(engine, PrefixStored(path_of(request.tokens)))
                self._answered(request)
        self._wake(engine)

    def _answered(self, request: Served) -> None:
        self.outcome.answers.append(
            Answered(
                request.due,
                request.first - request.due,
                self.now,
                request.prompt,
                len(request.tokens),
                request.cached,
                request.computed,
                request.front,
                request.moved,
            )
        )
        following = request.follow(self.now) if request.follow is not None else None
        if following is not None:
            self._plan(following)

    def _wake(self, engine: ServedEngine) -> None:
        if engine.next_at < NEVER:
            heapq.heappush(self._wakes, (engine.next_at, next(self._numbers), engine))

    def _report(self, engine: ServedEngine, event: PrefixEvent) -> None:
        """Send a report, which arrives later."""
        if self.setting.delay == NEVER:
            return
        name = engine.name
        self._sequences[name] += 1
        sequence = self._sequences[name]

        def arrive() -> None:
            for router in self.fronts:
                if router.engines.get(name) is not None:
                    router.report(name, sequence, [event])

        self.at(self.now + self.setting.delay, arrive)


def snapshot(engine: ServedEngine) -> list[PrefixPath]:
    """Return the prefixes that an engine has, the last used one last."""
    leaves = [node for node in engine.tree.nodes() if not node.children]
    leaves.sort(key=lambda node: node.used)
    return [path_of(engine.tree.path(node)[0]) for node in leaves]
