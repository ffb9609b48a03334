"""Sessions on the real engine, in virtual time."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from sglang.ir.sampling import SamplingParams
from sglang.srt.commands.bench.stats import percentile
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import (
    Advance,
    Append,
    Close,
    Done,
    Event,
    Generate,
    Open,
    Park,
    Tokens,
    Verb,
)
from sglang.srt.interception.durations import Durations

from benchmark.interception.sessions import Session
from benchmark.interception.virtual_engine import Arm, Machine, VirtualEngine


class Oracle(Durations):
    """Believes the hints."""

    def remaining(self, owner: str, tool: str, elapsed: float, expected: float = 0.0) -> float:
        """Return what the hint leaves."""
        return max(expected - elapsed, 0.0)


@dataclass
class Progress:
    """State of a session.

    Attributes:
        turn: index of the one that is computed, or whose call is made.
        paused: seconds of its calls so far; since: when the present one began.
        first: moment of its first token; ended: of its end.
    """

    session: Session
    turn: int = 0
    generated: int = 0
    paused: float = 0.0
    since: float = 0.0
    first: float = 0.0
    ended: float = 0.0

    @property
    def normalised_ms(self) -> float:
        """Latency without its calls, in ms a generated token."""
        seconds = self.ended - self.session.arrival - self.paused
        return 1e3 * seconds / max(self.generated, 1)


@dataclass
class Outcome:
    """Result of a run. Latencies are medians of finished sessions, in ms.

    Attributes:
        recomputed: tokens that were computed more than once.
        waste: share of the device's memory times time that was withheld for waiting calls, or held
            by requests while tokens were computed again (InferCept, equations 1 to 4). Memory that
            a claim gives up as soon as it is needed is not withheld.
    """

    finished: float
    p50: float
    p90: float
    ttft: float
    computed: int
    recomputed: int
    waste: float
    stored: int
    loaded: int
    stall: float
    retractions: int
    progress: list[Progress] = field(default_factory=list, repr=False)


class Run:
    """Sessions on an engine, in virtual time."""

    def __init__(self, arm: Arm, machine: Machine, sessions: Sequence[Session]) -> None:
        self.arm, self.machine = arm, machine
        virtual = self.virtual = VirtualEngine(arm, machine)
        self.worker, self.clock, self.engine = virtual.worker, virtual.clock, virtual.core
        if arm.oracle:
            self.engine.planner.parked.durations = Oracle()
        self._numbers = itertools.count(1)
        self._lost = self._time = 0.0  # memory times time, in token milliseconds
        self._all = [Progress(session) for session in sessions]
        self._busy: dict[int, Progress] = {}  # by request
        self._events: list[tuple[float, int, Progress]] = [
            (progress.session.arrival, progress.session.number, progress) for progress in self._all
        ]
        heapq.heapify(self._events)

    def run(self, seconds: float, tick: Callable[[float], None] = lambda now: None) -> Outcome:
        """Play ``seconds`` and return the result. ``tick`` is called with the time."""
        clock, engine = self.clock, self.engine
        while clock.now() < seconds:
            self._begin_due()
            if not engine.busy:
                if not self._events:
                    break
                clock.advance(max(self._events[0][0] - clock.now(), 1e-9))
                continue
            events = self.virtual.step()
            self._measure()
            for event in events:
                self._take(event)
            tick(clock.now())
        return self._outcome(min(seconds, clock.now()))

    def _measure(self) -> None:
        """Add the last pass to the waste."""
        store, parked = self.engine.store, self.engine.planner.parked
        held = parked.withheld if parked else 0
        busy = sum(len(request.context.tokens) for request in self.engine.running.values())
        again = self.machine.token_ms * self.worker.last_again * busy
        self._lost += held * self.worker.ms + again
        self._time += store.pool.size * self.worker.ms

    def _begin_due(self) -> None:
        while self._events and self._events[0][0] <= self.clock.now():
            _, _, progress = heapq.heappop(self._events)
            session = progress.session
            number, context = next(self._numbers), session.number
            turn = session.turns[progress.turn]
            verbs: list[Verb] = []
            if progress.turn == 0:
                begin = session.number << 12
                tokens = ints(range(begin, begin + session.prompt))
                verbs.append(Open(context, tokens.tobytes()))
            else:
                call = session.turns[progress.turn - 1]
                result = (session.number << 12) + 2048 + 32 * progress.turn
                verbs.append(Append(context, ints([result] * call.returned).tobytes()))
                progress.paused += self.clock.now() - progress.since
            goal = Generate(SamplingParams(
                max_new_tokens=turn.generated, temperature=0.0, ignore_eos=True
            ))  # fmt: skip
            arrived = max(session.arrival, 1e-9) if self.arm.line else 0.0
            last = progress.turn == len(session.turns) - 1
            verbs.append(Advance(context, number, goal, close=last, arrived=arrived))
            self._busy[number] = progress
            refused = self.engine.handle(verbs)
            if refused:
                raise RuntimeError(f"the engine refused: {refused}")

    def _take(self, event: Event) -> None:
        now = self.clock.now()
        if isinstance(event, Tokens):
            progress = self._busy[event.request]
            progress.generated += len(event.tokens)
            progress.first = progress.first or now
        elif isinstance(event, Done):
            progress = self._busy.pop(event.request)
            turn = progress.session.turns[progress.turn]
            if event.stats.completion_tokens != turn.generated:
                raise RuntimeError(f"{event.stats.completion_tokens} tokens, not {turn.generated}")
            if progress.turn == len(progress.session.turns) - 1:
                progress.ended = now
                return
            progress.turn += 1
            progress.since = now
            if turn.seconds == math.inf and self.arm.closes:
                self.engine.handle([Close(progress.session.number)])
                return
            if self.arm.parking != "none":
                number, tool = progress.session.number, progress.session.workload
                expected = self.arm.hint * turn.seconds if turn.seconds < math.inf else 0.0
                self.engine.handle([Park(number, tool, expected=expected)])
            if turn.seconds < math.inf:
                due = now + turn.seconds
                heapq.heappush(self._events, (due, progress.session.number, progress))
        else:
            raise RuntimeError(f"the engine failed: {event}")

    def _outcome(self, seconds: float) -> Outcome:
        ended = [progress for progress in self._all if progress.ended]
        waits = sorted(p.first - p.session.arrival for p in self._all if p.first)
        latencies = sorted(progress.normalised_ms for progress in ended)
        worker = self.worker
        return Outcome(
            finished=len(ended) / seconds,
            p50=percentile(latencies or [0.0], 50),
            p90=percentile(latencies or [0.0], 90),
            ttft=1e3 * percentile(waits or [0.0], 50),
            computed=worker.computed,
            recomputed=worker.again,
            waste=self._lost / max(self._time, 1e-9),
            stored=worker.stored,
            loaded=worker.loaded,
            stall=worker.stall_ms / max(worker.forward_ms, 1e-9),
            retractions=self.engine.stats.retractions,
            progress=self._all,
        )
