"""Cluster: the real router before real engines in virtual time, and the programs' clients.

An engine computes its passes by its own clock. The one that is farthest behind goes first, so that
no message comes from the future. A call becomes ready when the calls that it reads have ended. A
client that runs the loop itself learns of it one message later, and its next call takes another
message. The server that runs the program does so at once.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sglang.ir.sampling import SamplingParams
from sglang.srt.core.call_hints import CallHint, PrefixHash
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.messages import Advance, Done, Failed, Generate, Open, Tokens
from sglang.srt.routing.prompt import RoutedPrompt
from sglang.srt.routing.routed_engine import Ticket
from sglang.srt.routing.router import Router

from benchmark.applications.machines import PAGE, ReadingEngine, ReadingMachine
from benchmark.applications.workloads import Call, Program, token_ids
from benchmark.interception.virtual_engine import Arm

TARGET_MS = 40.0  # ``--latency-target-ms``
MESSAGE = (0.1, 0.15)  # seconds of a message between client and server; there and back 200-300 ms


@dataclass(frozen=True)
class Setting:
    """A way of serving.

    Attributes:
        share: KV stays in the radix tree, and requests share it.
        once: a shared prefix is read once a pass.
        routing: policy of the router.
        hints: "none"; "calls": every call is latency-sensitive by itself; "programs": deduced.
        server: programs run in the server.
        order: of waiting requests.
        line: calls keep the arrival of their program.
    """

    share: bool = True
    once: bool = True
    routing: str = "application"
    hints: str = "programs"
    server: bool = True
    order: str = "app"
    line: bool = True


class _Sent(NamedTuple):
    """Call in an engine."""

    program: int
    call: int
    ticket: Ticket
    engine: str


@dataclass
class ProgramRun:
    """A program that runs.

    Attributes:
        ended: moment of its end at its client, seconds; 0 before.
        firsts, ends: moments at the server, by call.
    """

    program: Program
    left: list[int] = field(default_factory=list)
    sent: set[int] = field(default_factory=set)
    firsts: dict[int, float] = field(default_factory=dict)
    ends: dict[int, float] = field(default_factory=dict)
    ended: float = 0.0

    @property
    def seconds(self) -> float:
        """Duration, from the arrival to the end."""
        return self.ended - self.program.arrival

    @property
    def normalised_ms(self) -> float:
        """Milliseconds a generated token."""
        return 1e3 * self.seconds / sum(call.output for call in self.program.calls)

    @property
    def decode_ms(self) -> float:
        """Milliseconds between two tokens of its last call."""
        last = len(self.program.calls) - 1
        return 1e3 * (self.ends[last] - self.firsts[last]) / (self.program.calls[last].output - 1)


class Cluster:
    """Engines, a router, and programs in virtual time."""

    def __init__(
        self, setting: Setting, machine: ReadingMachine, engines: int, programs: Sequence[Program]
    ) -> None:
        self.setting = setting
        self.router = Router(setting.routing)
        self.router.applications.latency_share = machine.share_within(TARGET_MS)
        self._random = random.Random(1)
        self.engines: dict[str, ReadingEngine] = {}
        arm = Arm(setting.order, share=setting.share)
        for number in range(engines):
            name = f"e{number}"
            self.engines[name] = ReadingEngine(arm, machine, setting.once)
            self.router.add(name, machine.capacity, 256)
        self.runs = [ProgramRun(program) for program in programs]
        self._numbers = itertools.count(1)
        self._sent: dict[int, _Sent] = {}
        self._events: list[tuple[float, int, int, int]] = []  # moment, number, program, call
        self.peak = 0  # most tokens of KV in use at once, of all engines
        for number, program in enumerate(programs):
            for call, facts in enumerate(program.calls):
                if not facts.needs:
                    self._at(program.arrival + self._message(), number, call)

    def run(self, until: float = float("inf")) -> list[ProgramRun]:
        """Play the programs to their end, or to a moment."""
        while True:
            coming = self._events[0][0] if self._events else float("inf")
            busy = [engine for engine in self.engines.values() if engine.core.busy]
            engine = min(busy, key=lambda each: each.clock.now(), default=None)
            now = engine.clock.now() if engine is not None else coming
            if min(now, coming) >= until or (engine is None and coming == float("inf")):
                return self.runs
            if engine is None or coming <= now:
                moment, _, program, call = heapq.heappop(self._events)
                self._send(moment, program, call)
                continue
            self._step(engine)

    def _step(self, engine: ReadingEngine) -> None:
        events = engine.step()
        now = engine.clock.now()
        used = PAGE * sum(each.core.store.protected for each in self.engines.values())
        self.peak = max(self.peak, used)
        for event in events:
            if isinstance(event, Failed):
                raise RuntimeError(event.message)
            if not isinstance(event, (Tokens, Done)):
                continue
            sent = self._sent.get(event.request)
            if sent is None:
                continue
            run = self.runs[sent.program]
            if sent.call not in run.firsts:
                run.firsts[sent.call] = now
                cached = event.stats.cached_tokens if event.stats is not None else 0
                self.router.first_token(sent.ticket, now, cached)
            if isinstance(event, Done):
                self._ended(now, self._sent.pop(event.request))

    # -- programs --------------------------------------------------------------------------------

    def _message(self) -> float:
        return self._random.uniform(*MESSAGE)

    def _at(self, moment: float, program: int, call: int) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), program, call))

    def _ended(self, now: float, sent: _Sent) -> None:
        run = self.runs[sent.program]
        run.ends[sent.call] = now
        calls = run.program.calls
        self.router.ended(sent.ticket, now, calls[sent.call].output)
        if len(run.ends) == len(calls):
            run.ended = now + self._message()
            return
        for number, call in enumerate(calls):
            if number not in run.sent and call.needs and call.needs <= run.ends.keys():
                run.sent.add(number)
                wait = 0.0 if self.setting.server else self._message() + self._message()
                self._at(now + wait, sent.program, number)

    def _send(self, moment: float, number: int, call: int) -> None:
        run = self.runs[number]
        run.sent.add(call)
        facts = run.program.calls[call]
        tokens, prefixes = prompt_of(run.program, facts)
        hint = self._hint(run.program, facts)
        prompt = RoutedPrompt(tokens, new_tokens=facts.output, hint=hint, prefixes=prefixes)
        ticket = self.router.choose(prompt, moment)
        engine = self.engines[ticket.engine]
        engine.clock.advance(max(moment - engine.clock.now(), 0.0))
        request = next(self._numbers)
        self._sent[request] = _Sent(number, call, ticket, ticket.engine)
        goal = Generate(
            SamplingParams(max_new_tokens=facts.output, temperature=0.0, ignore_eos=True),
            interval=1 << 20,
        )
        arrived = run.program.arrival + 1e-3 if self.setting.line else 0.0
        engine.core.handle(
            [
                Open(request, tokens.tobytes()),
                Advance(request, request, goal, close=True, arrived=arrived, hint=hint),
            ]
        )

    def _hint(self, program: Program, call: Call) -> CallHint | None:
        if self.setting.hints == "none":
            return None
        if self.setting.hints == "calls":
            return CallHint(kind="latency")
        return CallHint(program.name, call.kind, 0.0, 0.0, call.group, call.stage)  # type: ignore[arg-type]


def prompt_of(program: Program, call: Call) -> tuple[Ints, tuple[PrefixHash, ...]]:
    """Token ids of a call's prompt, and its beginnings that end at a piece."""
    tokens, keys, prefixes = ints(), list[object](), list[PrefixHash]()
    for piece in call.prompt:
        key = piece.key if piece.output < 0 else (program.name, piece.output)
        tokens.extend(token_ids(key, piece.tokens))
        keys.append(key)
        prefixes.append(PrefixHash(hash(tuple(keys)), len(tokens)))
    return tokens, tuple(prefixes)
