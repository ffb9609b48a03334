"""ProgramGate: which programs may have turns computed, so that their KV fits the memory.

Where more programs are alive than memory holds, each turn evicts what another's next turn needs,
and nearly all time goes into computing it again. The gate admits a program only while the *working
set* stays within its room: the KV of the programs inside, what they share counted once, and of
those in a call half as much with each ``half_life`` (clients do not say when they are done).
Nothing is locked.

    outside    no turn is requested, or its turn waits in line
    running    inside; its turn is with the engine
    calling    inside; its last turn is answered and a tool works

A turn of a program inside goes on at once. All others wait in line, first come, first served; with
several tenants the one with the fewest programs inside is next. A program that has been inside for
a quantum leaves at its next call if others wait, and its next turn waits in line. One whose weight
has fallen below a token is forgotten.

Bounds: let a *round* be a quantum and the longest turn. The programs inside at some moment have
left a round later. So the first in line waits at most a round, and a turn with ``ahead`` turns
before it in line at most ``ahead + 1`` rounds, whatever the sizes; with several tenants, that many
rounds for each of them, counting the turns before it in its tenant's own line. Where nothing runs
for ``PATIENCE``, or no program is inside, the first in line is admitted whatever its size.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeAlias

from sglang.srt.interception.working_set import Context, WorkingSet

Key: TypeAlias = Hashable  # a program's
PATIENCE = 1.0  # seconds; most calls are back by then, and recomputing another's KV is dearer
ANSWER = 256.0  # tokens expected of the first answer
MEMORY = 0.95  # of the mean of the answers, at each answer


@dataclass(eq=False, slots=True)
class _LinedTurn:
    """A turn in line. ``growth``: tokens that its answer may add."""

    program: Key
    tenant: str
    context: Context
    growth: float


@dataclass(slots=True)
class _Inside:
    """A program inside.

    Attributes:
        holder: its number in the working set.
        growth: tokens that its running turn may add.
        entered: moment when it came in.
        called: moment of its last answer while it is in a call; None while its turn runs.
    """

    holder: int
    tenant: str
    growth: float
    entered: float
    called: float | None = None


@dataclass(slots=True)
class GateCounts:
    """Counts since the start. ``entered``: programs admitted. ``put_out``: after their quantum."""

    entered: int = 0
    put_out: int = 0


@dataclass(slots=True)
class ProgramGate:
    """Programs inside, and turns in line. Moments are seconds on one clock. A program has one turn
    at a time.

    Attributes:
        room: tokens that programs inside may have.
        quantum: seconds that a program may stay while others wait.
        half_life: seconds of a call in which a program's weight halves.
        block: tokens of a block of a context.
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
    _idle: float = 0.0  # since when nothing runs
    _swept: float = -math.inf  # when programs were last forgotten
    _answer: float = ANSWER  # mean tokens of the answers

    def __post_init__(self) -> None:
        if min(self.quantum, self.half_life) <= 0:
            raise ValueError(
                f"quantum {self.quantum} and half_life {self.half_life} must be above 0 s"
            )

    @property
    def waiting(self) -> int:
        """Turns in line."""
        return sum(map(len, self._lines.values()))

    @property
    def inside(self) -> int:
        """Programs inside."""
        return len(self._inside)

    def has_turn(self, program: Key) -> bool:
        """Return whether a turn of a program runs or waits in line."""
        found = self._inside.get(program)
        if found is not None:
            return found.called is None
        return any(turn.program == program for line in self._lines.values() for turn in line)

    def working_set(self, now: float) -> float:
        """Return the tokens of the programs inside, by their weights."""
        own = sum(self._size(each) * self._weight(each, now) for each in self._inside.values())
        return own + self.block * self._set.shared

    def request(
        self, program: Key, context: Context, most: float, now: float, tenant: str = ""
    ) -> bool:
        """Request a turn on ``context``, which may add ``most`` tokens. Return whether the program
        may go on now; else ``admit`` will return it. Raises ValueError where its turn runs or
        waits."""
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
        """Note that the turn of a program was answered with so many tokens, and its call
        begins."""
        found = self._inside[program]
        self._set.hold(found.holder, context)
        self._answer = MEMORY * self._answer + (1 - MEMORY) * generated
        found.growth, found.called = 0.0, now
        self._stop(now)

    def broken(self, program: Key, now: float) -> None:
        """Note that a program's turn has ended without an answer. One inside keeps its context as
        if its call began; a turn in line is removed."""
        found = self._inside.get(program)
        if found is None:
            self._remove(program)
        elif found.called is None:
            found.growth, found.called = 0.0, now
            self._stop(now)

    def ended(self, program: Key, now: float) -> None:
        """Forget a program, wherever it is."""
        found = self._inside.get(program)
        if found is None:
            self._remove(program)
            return
        self._put_out(program)
        if found.called is None:
            self._stop(now)

    def lost(self, now: float) -> None:
        """Note that all KV is lost: no program in a call has any."""
        for program in [key for key, each in self._inside.items() if each.called is not None]:
            self._put_out(program)

    def admit(self, now: float) -> list[Key]:
        """Return the programs whose turns in line may go on now. To be called whenever a turn is
        requested or answered, a program ends or time has passed."""
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
        """The turn that is admitted next: of the tenant with the fewest programs inside, and of
        several such the one whose last turn was admitted longest ago."""
        return self._lines[min(self._lines, key=held.__getitem__)][0]

    def _pop(self, turn: _LinedTurn) -> None:
        """Remove a turn. Its tenant is the last of equal ones from now on."""
        line = self._lines.pop(turn.tenant)
        line.remove(turn)
        if line:
            self._lines[turn.tenant] = line

    def _remove(self, program: Key) -> None:
        """Remove a program's turn from the line, if it has one there."""
        for line in list(self._lines.values()):
            for turn in [turn for turn in line if turn.program == program]:
                line.remove(turn)
                if not line:
                    del self._lines[turn.tenant]

    def _cost(self, turn: _LinedTurn, now: float) -> float:
        """Tokens by which the working set grows with a turn. What a program in a call has alone
        counts in full once another has it too."""
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
        """A turn runs no longer."""
        self._running, self._idle = self._running - 1, now

    def _put_out(self, program: Key) -> None:
        self._set.drop(self._inside.pop(program).holder)

    def _leave(self, now: float) -> None:
        """Put out the programs in a call that have used their quantum, where others wait; forget
        those that weigh nothing any more."""
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
        """Raise AssertionError where the books do not balance."""
        self._set.check()
        assert self._running == sum(each.called is None for each in self._inside.values())
        assert all(self._lines.values()), "a tenant with an empty line"
        turns = [turn.program for line in self._lines.values() for turn in line]
        assert len(set(turns)) == len(turns), "two turns of one program"
        assert not set(turns) & self._inside.keys(), "inside and in line"
