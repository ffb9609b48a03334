"""ProgramGate: limits which programs may have turns computed, so that their KV fits into memory.

If the KV of all active programs does not fit, each turn evicts KV that another program's next turn
needs, and most time is spent on computing evicted KV again. The gate admits a program only while
the *working set* fits into ``room``: the KV of the programs inside, shared KV counted once. KV of a
program in a tool call counts half as much after each ``half_life``, since clients do not report
when a program ends. The gate locks no KV. States of a program:

    outside    no turn is requested, or its turn waits in line
    running    inside; the engine computes its turn
    calling    inside; its last turn is answered and a tool runs

A turn of a program inside runs at once. Other turns wait in line, first come, first served; with
several tenants, the tenant with the fewest programs inside is next. A program that has been inside
for a *quantum* is put out at its next call if others wait, and its next turn waits in line. A
program whose weighted KV has fallen below one token is forgotten.

Bounds: let a *round* be a quantum plus the longest turn. All programs inside at some time have left
one round later. So the first in line waits at most a round, and a turn with ``ahead`` turns before
it at most ``ahead + 1`` rounds, whatever the sizes; with several tenants, that many rounds for each
tenant, where ``ahead`` counts the tenant's own line. If no turn runs for ``PATIENCE``, or no
program is inside, the first in line is admitted whatever its size.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeAlias

from sglang.srt.interception.working_set import Context, WorkingSet

Key: TypeAlias = Hashable  # key of a program
PATIENCE = 1.0  # seconds; most calls take less, and computing evicted KV again costs more
ANSWER = 256.0  # tokens assumed for the first answer
MEMORY = 0.95  # weight of the old mean of answer lengths, at each answer


@dataclass(eq=False, slots=True)
class _LinedTurn:
    """A turn in line. ``growth``: expected tokens of its answer."""

    program: Key
    tenant: str
    context: Context
    growth: float


@dataclass(slots=True)
class _Inside:
    """A program inside.

    Attributes:
        holder: number of the program in the working set.
        growth: expected tokens of its running turn.
        entered: time when the program was admitted.
        called: time of its last answer, when its call began; None while its turn runs.
    """

    holder: int
    tenant: str
    growth: float
    entered: float
    called: float | None = None


@dataclass(slots=True)
class GateCounts:
    """Counts since the start: programs admitted, and programs put out after their quantum."""

    entered: int = 0
    put_out: int = 0


@dataclass(slots=True)
class ProgramGate:
    """Programs inside, and turns in line. All times are seconds on one clock. A program has at most
    one turn at a time.

    Attributes:
        room: most tokens of the working set.
        quantum: seconds that a program may stay inside while others wait.
        half_life: seconds of a call after which the weight of a program's KV has halved.
        block: number of tokens of a block of a context (``working_set``).
    """

    room: float
    quantum: float
    half_life: float
    block: int = 1
    counts: GateCounts = field(default_factory=GateCounts)
    _inside: dict[Key, _Inside] = field(default_factory=dict)
    _lines: dict[str, deque[_LinedTurn]] = field(default_factory=dict)  # by tenant; none is empty
    _set: WorkingSet = field(default_factory=WorkingSet)
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _running: int = 0
    _idle: float = 0.0  # time since which no turn runs
    _swept: float = -math.inf  # time of the last check for programs to forget
    _answer: float = ANSWER  # mean number of tokens of the answers

    def __post_init__(self) -> None:
        if min(self.quantum, self.half_life) <= 0:
            raise ValueError(
                f"quantum {self.quantum} and half_life {self.half_life} must be above 0 s"
            )

    @property
    def waiting(self) -> int:
        """Number of turns in line."""
        return sum(map(len, self._lines.values()))

    @property
    def inside(self) -> int:
        """Number of programs inside."""
        return len(self._inside)

    def has_turn(self, program: Key) -> bool:
        """Return whether a turn of a program runs or waits in line."""
        found = self._inside.get(program)
        if found is not None:
            return found.called is None
        return any(turn.program == program for line in self._lines.values() for turn in line)

    def working_set(self, now: float) -> float:
        """Return the weighted number of tokens of the programs inside."""
        own = sum(self._size(each) * self._weight(each, now) for each in self._inside.values())
        return own + self.block * self._set.shared

    def request(
        self, program: Key, context: Context, most: float, now: float, tenant: str = ""
    ) -> bool:
        """Request a turn on ``context`` that adds at most ``most`` tokens. Return True if it may
        run now; otherwise a later ``admit`` returns the program. Raises ValueError if a turn of the
        program runs or waits."""
        if self.has_turn(program):
            raise ValueError(f"program {program!r} has a turn already; it may have one at a time")
        self._leave(now)
        growth, found = min(most, self._answer), self._inside.get(program)
        if found is None:
            turn = _LinedTurn(program, tenant, context, growth)
            self._lines.setdefault(tenant, deque()).append(turn)
            return False
        self._set.hold(found.holder, context)
        found.growth, found.called = growth, None
        self._running += 1
        return True

    def answered(self, program: Key, context: Context, generated: float, now: float) -> None:
        """Note that a program's turn was answered with ``generated`` tokens, and its call begins.
        ``context``: its context after the answer."""
        found = self._inside[program]
        self._set.hold(found.holder, context)
        self._answer = MEMORY * self._answer + (1 - MEMORY) * generated
        found.growth, found.called = 0.0, now
        self._stop(now)

    def broken(self, program: Key, now: float) -> None:
        """Note that a program's turn has ended without an answer. A program inside keeps its
        context, as if a call began; a turn in line is removed."""
        found = self._inside.get(program)
        if found is None:
            self._remove(program)
        elif found.called is None:
            found.growth, found.called = 0.0, now
            self._stop(now)

    def ended(self, program: Key, now: float) -> None:
        """Forget a program, inside or in line."""
        found = self._inside.get(program)
        if found is None:
            self._remove(program)
            return
        self._put_out(program)
        if found.called is None:
            self._stop(now)

    def lost(self, now: float) -> None:
        """Put out all programs in a call, after a loss of all KV."""
        for program in [key for key, each in self._inside.items() if each.called is not None]:
            self._put_out(program)

    def admit(self, now: float) -> list[Key]:
        """Admit and return the programs whose turns in line may run now. Must be called when a turn
        was requested or answered, a program has ended or time has passed."""
        if not self._lines:
            return []
        self._leave(now)
        found: list[Key] = []
        held = Counter(each.tenant for each in self._inside.values())
        while self._lines:
            turn = self._next(held)
            idle = not self._running and (not self._inside or now - self._idle >= PATIENCE)
            if not idle and self.working_set(now) + self._cost(turn, now) > self.room:
                break
            self._pop(turn)
            self._enter(turn, now)
            held[turn.tenant] += 1
            found.append(turn.program)
        return found

    # -- the line ---------------------------------------------------------------------------------

    def _next(self, held: Counter[str]) -> _LinedTurn:
        """Return the first turn of the tenant with the fewest programs inside; of several such
        tenants, the one whose last turn was admitted longest ago."""
        return self._lines[min(self._lines, key=held.__getitem__)][0]

    def _pop(self, turn: _LinedTurn) -> None:
        """Remove a turn from its line, and move its tenant behind all other tenants."""
        line = self._lines.pop(turn.tenant)
        line.remove(turn)
        if line:
            self._lines[turn.tenant] = line

    def _remove(self, program: Key) -> None:
        """Remove a program's turn from its line, if there is one."""
        for line in list(self._lines.values()):
            for turn in [turn for turn in line if turn.program == program]:
                line.remove(turn)
                if not line:
                    del self._lines[turn.tenant]

    def _cost(self, turn: _LinedTurn, now: float) -> float:
        """Return the tokens by which a turn would enlarge the working set. A block that only one
        program in a call had counts in full once the turn shares it."""
        fresh, alone = self._set.met(turn.context)
        lifted = 0.0
        if alone:
            for each in self._inside.values():
                lifted += alone[each.holder] * (1.0 - self._weight(each, now))
        return self.block * (fresh + lifted) + turn.growth

    # -- inside -----------------------------------------------------------------------------------

    def _enter(self, turn: _LinedTurn, now: float) -> None:
        holder = next(self._numbers)
        self._set.hold(holder, turn.context)
        self._inside[turn.program] = _Inside(holder, turn.tenant, turn.growth, now)
        self._running += 1
        self.counts.entered += 1

    def _stop(self, now: float) -> None:
        """Note that a running turn has ended."""
        self._running, self._idle = self._running - 1, now

    def _put_out(self, program: Key) -> None:
        self._set.drop(self._inside.pop(program).holder)

    def _leave(self, now: float) -> None:
        """If turns wait, put out the programs in a call that have used their quantum. Forget
        programs whose weighted KV is below one token."""
        if self._lines:
            over = [
                key
                for key, each in self._inside.items()
                if each.called is not None and now - each.entered >= self.quantum
            ]
            self.counts.put_out += len(over)
            for key in over:
                self._put_out(key)
        if now - self._swept >= self.half_life:
            self._swept = now
            for key in [key for key, each in self._inside.items() if self._weightless(each, now)]:
                self._put_out(key)

    def _weightless(self, each: _Inside, now: float) -> bool:
        weight = self._weight(each, now)
        whole = self.block * self._set.own(each.holder) + self.block
        return each.called is not None and whole * weight < 1.0

    def _size(self, each: _Inside) -> float:
        return self.block * self._set.own(each.holder) + each.growth

    def _weight(self, each: _Inside, now: float) -> float:
        if each.called is None:
            return 1.0
        return math.pow(0.5, (now - each.called) / self.half_life)

    def check(self) -> None:
        """Raise AssertionError if the gate's counts are inconsistent."""
        self._set.check()
        assert self._running == sum(each.called is None for each in self._inside.values())
        assert all(self._lines.values()), "a tenant with an empty line"
        turns = [turn.program for line in self._lines.values() for turn in line]
        assert len(set(turns)) == len(turns), "two turns of one program"
        assert not set(turns) & self._inside.keys(), "inside and in line"
