"""The real engine in virtual time: its worker computes nothing and says how long it would take.

A pass of q tokens takes ``10 + 0.0463 q`` ms (the paper's fit for GPT-J 6B on an A100), or as long
as its copies where these take longer; the link to host memory carries 25 tokens a ms.
"""

from __future__ import annotations

import heapq
import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sglang.ir.sampling import SamplingParams
from sglang.srt.config import ScheduleConfig
from sglang.srt.core.batch import Batch, Row, RowOutput, StepResult
from sglang.srt.core.clock import ManualClock
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Advance, Append, Done, Generate, Open, Park, Tokens, Verb
from sglang.srt.core.workers import NO_MASKS, Finish, Masks
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Inline
from sglang.srt.engine.info import EngineInfo
from sglang.srt.interception.durations import Durations

from benchmark.interception.sessions import Session

TOKEN = 5  # each sampled token
BIG = 1 << 30


@dataclass(frozen=True)
class Machine:
    """The machine that is simulated.

    Attributes:
        base_ms, token_ms: milliseconds of a pass, and of each of its tokens.
        link: tokens a millisecond whose KV travels between the device and host memory.
        capacity, host: tokens of KV on the device, and in host memory.
        chunk: prompt tokens a pass, at which the device is saturated.
    """

    base_ms: float = 10.0
    token_ms: float = 0.0463
    link: float = 25.0
    capacity: int = 48_000
    host: int = 400_000
    chunk: int = 512


@dataclass(frozen=True)
class Arm:
    """A way of treating KV at a call.

    Attributes:
        share: KV stays in the radix tree when a request ends.
        chunked: prompts are computed in chunks of ``Machine.chunk``.
        line: a session that resumes does not queue as a newcomer.
        host: evicted KV is kept in host memory.
        parking: what becomes of the KV of contexts that wait for a call.
        hint: factor by which the client's hints of a call's seconds are wrong, or right, 1; 0: the
            client gives none.
        oracle: the hints are believed, whatever calls have taken before.
    """

    policy: str = "fcfs"
    share: bool = True
    chunked: bool = True
    line: bool = False
    host: bool = False
    parking: str = "none"
    hint: float = 0.0
    oracle: bool = False


PRICED = Arm("lpm", line=True, host=True, parking="priced")
ARMS = {
    "discard": Arm(share=False, chunked=False),
    "improved-discard": Arm(share=False, chunked=False, line=True),
    "preserve": Arm(line=True, parking="preserve"),
    "swap": Arm(line=True, host=True, parking="swap"),
    "heuristic": Arm(line=True, host=True, parking="heuristic"),
    "min-waste": Arm(line=True, host=True, parking="min-waste"),
    "radix": Arm("lpm"),
    "radix + line": Arm("lpm", line=True),
    "tiers": Arm("lpm", line=True, host=True),
    "priced": PRICED,
    "priced oracle": replace(PRICED, hint=1.0, oracle=True),
    "priced hints / 10": replace(PRICED, hint=0.1),
    "priced hints x 10": replace(PRICED, hint=10.0),
}


class Oracle(Durations):
    """Believes the hints."""

    def remaining(self, owner: str, tool: str, elapsed: float, expected: float = 0.0) -> float:
        """Return what the hint leaves."""
        return max(expected - elapsed, 0.0)


class VirtualWorker:
    """Samples ``TOKEN`` everywhere. Adds up what the passes would have taken.

    Attributes:
        ms: of the last pass.
        forward_ms, stall_ms: of all passes; of these, what copies took beyond the pass.
        computed, stored, loaded: tokens.
        again: of the computed ones, those that were computed for the same context before.
        last_again: of these, those of the last pass.
    """

    disk = None

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.ms = self.forward_ms = self.stall_ms = 0.0
        self.computed = self.stored = self.loaded = self.again = self.last_again = 0
        self._reached: dict[int, int] = {}  # tokens computed so far, by context

    def launch(self, batch: Batch, masks: Masks = NO_MASKS) -> Finish:
        count, stores, loads = batch.num_tokens, 0, 0
        if batch.moves is not None:
            stores, loads = len(batch.moves.stores), len(batch.moves.loads)
        forward = self.machine.base_ms + self.machine.token_ms * count if count else 0.0
        self.ms = max(forward, (stores + loads) / self.machine.link)
        self.forward_ms += forward
        self.stall_ms += self.ms - forward
        self.computed += count
        self.last_again = sum(self._repeated(row) for row in batch.rows)
        self.again += self.last_again
        self.stored += stores
        self.loaded += loads
        result = StepResult(
            batch.id, [RowOutput(token=TOKEN) for _ in batch.rows], seconds=forward / 1e3,
            copy_seconds=(stores + loads) / self.machine.link / 1e3,
        )  # fmt: skip
        return lambda: result

    def _repeated(self, row: Row) -> int:
        """Tokens of a row that were computed before."""
        end, before = row.start + len(row.tokens), self._reached.get(row.context, 0)
        self._reached[row.context] = max(before, end)
        return max(min(before, end) - row.start, 0)

    def load_adapter(self, number: int, path: str, pinned: bool) -> dict[str, object]:
        raise ValueError("no adapters in virtual time")

    def unload_adapter(self, number: int) -> None: ...


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
        self.worker, self.clock = VirtualWorker(machine), ManualClock()
        schedule = ScheduleConfig(
            schedule_policy=arm.policy,
            chunked_prefill_size=machine.chunk if arm.chunked else -1,
            max_queued_requests=BIG,
            park_policy=arm.parking,
        )
        info = EngineInfo(
            model_path="", architecture="", dtype="", device="", vocab_size=BIG,
            context_length=1 << 20, capacity=machine.capacity, page_size=1, eos=(),
            max_running_requests=256, max_queued_requests=BIG,
            host_capacity=machine.host if arm.host else 0,
        )  # fmt: skip
        self.engine = EngineCore(
            Inline(self.worker), info, schedule, [b"."], share=arm.share, clock=self.clock
        )
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
            self.worker.ms = 0.0
            events = engine.step()
            clock.advance(self.worker.ms / 1e3)
            self._measure()
            if not self.worker.ms and not events:
                raise RuntimeError("the engine is busy and does nothing")
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

    def _take(self, event: object) -> None:
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
            if self.arm.parking != "none":
                number, tool = progress.session.number, progress.session.workload
                expected = self.arm.hint * turn.seconds
                self.engine.handle([Park(number, tool, expected=expected)])
            heapq.heappush(self._events, (now + turn.seconds, progress.session.number, progress))
        else:
            raise RuntimeError(f"the engine failed: {event}")

    def _outcome(self, seconds: float) -> Outcome:
        ended = [progress for progress in self._all if progress.ended]
        begun = [progress for progress in self._all if progress.first]
        latencies = sorted(progress.normalised_ms for progress in ended)
        worker = self.worker
        return Outcome(
            finished=len(ended) / seconds,
            p50=_quantile(latencies, 0.5),
            p90=_quantile(latencies, 0.9),
            ttft=1e3 * statistics.median([p.first - p.session.arrival for p in begun] or [0.0]),
            computed=worker.computed,
            recomputed=worker.again,
            waste=self._lost / max(self._time, 1e-9),
            stored=worker.stored,
            loaded=worker.loaded,
            stall=worker.stall_ms / max(worker.forward_ms, 1e-9),
            retractions=self.engine.stats.retractions,
            progress=self._all,
        )


def _quantile(values: Sequence[float], share: float) -> float:
    return values[int(share * (len(values) - 1))] if values else 0.0
