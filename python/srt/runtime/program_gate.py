"""ProgramTurns: turns of programs that wait at the gate before the engine, or have passed it.

A program is a conversation of several requests: a session, or requests each of which continues the
context that the previous one parked. Any other request is a program of its own, which ends with its
answer. The policy is ``interception.gate``. This module adds its clock, its requests and their
ends.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeAlias

from sglang.srt.config import ProgramGateConfig
from sglang.srt.core.clock import SYSTEM_CLOCK, Clock
from sglang.srt.core.ints import ints
from sglang.srt.engine.info import EngineInfo
from sglang.srt.interception.gate import Key, ProgramGate
from sglang.srt.interception.working_set import Context, context_of
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Output
from sglang.srt.runtime.fair_queue import TurnAborted
from sglang.srt.runtime.parking.parked_store import ParkedContext, Timer, later

BLOCK = 128  # tokens of a block of the working set, at least
POLL = 0.05  # seconds after which waiting turns are offered to the gate again
LINGER = 0.1  # seconds after an answer within which its context may be parked

Outputs: TypeAlias = AsyncGenerator[Output, None]


@dataclass(eq=False, slots=True)
class _GatedTurn:
    """A turn that waits, runs, or has ended without being settled.

    Attributes:
        moment: when the turn came, in seconds of the clock.
        lasting: the program continues even if this turn parks no context.
        parked: the turn's context was parked.
    """

    program: Key
    request: CompletionRequest
    moment: float
    lasting: bool
    future: asyncio.Future[None]
    parked: bool = False


@dataclass(slots=True)
class GateTimes:
    """Number of turns that have passed the gate, and the sum of their waiting times in seconds."""

    turns: int = 0
    seconds: float = 0.0


@dataclass(eq=False)
class ProgramTurns:
    """The turns of all programs on one engine. Call every method on the engine's event loop.

    Args:
        gate: the policy.
        clock: clock of the gate's times.
        later: calls a function after a number of seconds.
    """

    gate: ProgramGate
    clock: Clock = SYSTEM_CLOCK
    later: Callable[[float, Callable[[], None]], Timer] = later
    times: GateTimes = field(default_factory=GateTimes)
    _turns: dict[Key, _GatedTurn] = field(default_factory=dict)
    _named: dict[tuple[str, str], _GatedTurn] = field(default_factory=dict)  # by owner and rid
    _contexts: dict[int, Key] = field(default_factory=dict)  # programs by number in the store
    _parked: Counter[Key] = field(default_factory=Counter)  # number of parked contexts by program
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _timer: Timer | None = None

    @property
    def waiting(self) -> int:
        """Return the number of completions whose turns wait."""
        if not self.gate.waiting:
            return 0
        turns = self._turns.values()
        return sum(turn.request.sampling.n for turn in turns if not turn.future.done())

    async def follow(self, request: CompletionRequest, run: Callable[[], Outputs]) -> Outputs:
        """Yield the outputs of ``run()``, which is called when the gate admits the request. Raises
        TurnAborted, and what ``run`` raises."""
        turn = self._begin(request)
        answered: list[Output] = []
        try:
            if not turn.future.done():
                await turn.future
            self._count(turn)
            async with aclosing(run()) as outputs:
                async for output in outputs:
                    if output.finish is not None:
                        answered.append(output)
                    yield output
        finally:
            self._end(turn, answered)

    def abort(self, rid: str | None = None, owner: str | None = None) -> int:
        """Abort waiting requests named ``rid`` (None: all) of ``owner`` (None: of all). Return the
        number of their completions."""
        chosen = [
            turn
            for turn in self._turns.values()
            if not turn.future.done()
            and rid in (None, turn.request.rid)
            and owner in (None, turn.request.owner)
        ]
        for turn in chosen:
            turn.future.set_exception(TurnAborted())
        return sum(turn.request.sampling.n for turn in chosen)

    def lost(self) -> None:
        """Record that the engine was lost, and all KV with it."""
        self.gate.lost(self.clock.now())
        self._admit()

    # -- parked contexts (``ParkedWatcher``) -------------------------------------------------------

    def parked(self, context: ParkedContext) -> None:
        """Record that a context was parked, so its program continues."""
        turn = self._named.get((context.scope.tenant, context.facts.rid))
        if turn is not None:
            turn.parked = True
            self._contexts[context.number] = turn.program
            self._parked[turn.program] += 1

    def removed(self, context: ParkedContext) -> None:
        """Record that a context is gone. A program without any context has ended, unless its turn
        runs."""
        program = self._contexts.pop(context.number, None)
        if program is None:
            return
        self._parked[program] -= 1
        if not self._parked[program]:
            del self._parked[program]
            if program not in self._turns:
                self.gate.ended(program, self.clock.now())
                self._admit()

    # -- one turn ----------------------------------------------------------------------------------

    def _begin(self, request: CompletionRequest) -> _GatedTurn:
        program, lasting = self._program(request)
        now = self.clock.now()
        future = asyncio.get_running_loop().create_future()
        turn = _GatedTurn(program, request, now, lasting, future)
        self._turns[program] = self._named[request.owner, request.rid] = turn
        most = request.sampling.max_new_tokens * request.sampling.n
        if self.gate.request(program, self._context(request), most, now, request.owner):
            future.set_result(None)
        self._admit()
        return turn

    def _program(self, request: CompletionRequest) -> tuple[Key, bool]:
        """Return the program of a request, and whether the program continues if nothing is parked.
        A turn that comes while another turn of its program runs is a program of its own."""
        program: Key | None = None
        if request.program:
            program = request.owner, request.program
        elif request.resumed is not None:
            program = self._contexts.get(request.resumed.number)
        if program is None or self.gate.has_turn(program):
            return next(self._numbers), False
        return program, bool(request.program)

    def _context(self, request: CompletionRequest, output: Output | None = None) -> Context:
        tokens = request.prompt if output is None else request.prompt + ints(output.tokens)
        return context_of(tokens, self.gate.block, f"{request.adapter}\0{request.namespace}")

    def _count(self, turn: _GatedTurn) -> None:
        self.times.turns += 1
        self.times.seconds += self.clock.now() - turn.moment

    def _end(self, turn: _GatedTurn, answered: list[Output]) -> None:
        """Record that a turn has ended, with its outputs ``answered`` or without any."""
        now, request = self.clock.now(), turn.request
        if not turn.future.done():
            turn.future.cancel()
        if len(answered) == request.sampling.n:
            generated = sum(output.completion_tokens for output in answered)
            only = answered[0] if len(answered) == 1 else None
            self.gate.answered(turn.program, self._context(request, only), generated, now)
            self.later(LINGER, lambda: self._settle(turn))
        else:
            turn.parked = turn.parked or bool(self._parked[turn.program])
            self.gate.broken(turn.program, now)
            self._settle(turn)
        self._admit()

    def _settle(self, turn: _GatedTurn) -> None:
        """Forget a turn. Its program ends too, unless it is lasting or the turn has parked a
        context."""
        name = turn.request.owner, turn.request.rid
        if self._named.get(name) is turn:
            del self._named[name]
        if self._turns.get(turn.program) is not turn:
            return  # the program's next turn has begun
        del self._turns[turn.program]
        if not turn.lasting and not (turn.parked and turn.program in self._parked):
            self.gate.ended(turn.program, self.clock.now())
            self._admit()

    def _admit(self) -> None:
        """Admit the turns that the gate allows. If others wait, look again soon."""
        for program in self.gate.admit(self.clock.now()):
            future = self._turns[program].future
            if not future.done():  # a turn that was just aborted leaves by itself
                future.set_result(None)
        if self.gate.waiting and self._timer is None:
            self._timer = self.later(POLL, self._look)

    def _look(self) -> None:
        self._timer = None
        self._admit()

    # -- statistics --------------------------------------------------------------------------------

    def counts(self) -> dict[str, float]:
        """Return gauges and counters by name."""
        return {
            "inside": self.gate.inside,
            "waiting": self.gate.waiting,
            "working_set": self.gate.working_set(self.clock.now()),
            "entered": self.gate.counts.entered,
            "put_out": self.gate.counts.put_out,
            "turns": self.times.turns,
            "seconds": self.times.seconds,
        }

    def check(self) -> None:
        """Raise AssertionError if the counts are inconsistent."""
        self.gate.check()
        assert self._parked == Counter(self._contexts.values())
        for program, turn in self._turns.items():
            assert turn.program == program
            assert turn.future.done() or self.gate.has_turn(program), "neither queued nor admitted"
        assert not self.gate.waiting or self._timer is not None, "turns wait, and no look is due"


def program_turns(config: ProgramGateConfig, info: EngineInfo) -> ProgramTurns | None:
    """Return the turns of programs on an engine; None if the configuration has no gate."""
    if not config.program_gate:
        return None
    room = config.program_gate * (info.capacity + info.host_capacity)
    block = -(-BLOCK // info.page_size) * info.page_size
    return ProgramTurns(
        ProgramGate(room, config.program_gate_quantum, config.program_gate_half_life, block)
    )
