"""ProgramGate: which programs may have turns computed, so that their KV fits the memory.

Where more programs are alive than memory holds, each turn evicts what another's next turn needs,
and nearly all time goes into computing it again. The gate admits a program only while the *working
set* stays within its room: the tokens of the programs inside, those in a call weighing half as much
with each ``half_life`` (clients do not say when they are done). Nothing is locked.

    outside    no turn is requested, or its turn waits in line
    running    inside; its turn is with the engine
    calling    inside; its last turn is answered and a tool works

A turn of a program inside goes on at once. All others wait in line, first come, first served. A
program that has been inside for a quantum leaves at its next call if others wait, and its next turn
waits in line.

Bounds: let a *round* be a quantum and the longest turn. The programs inside at some moment have
left a round later. So the first in line waits at most a round, and a turn with ``ahead`` turns
before it in line at most ``ahead + 1`` rounds, whatever the sizes. Where nothing runs for
``PATIENCE``, or no program is inside, the first in line is admitted whatever its size.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import TypeAlias

Key: TypeAlias = int  # a program's
PATIENCE = 1.0  # seconds; most calls are back by then, and recomputing another's KV is dearer


@dataclass(slots=True)
class Inside:
    """A program inside.

    Attributes:
        size: tokens of its context that no other program has.
        entered: moment when it came in.
        called: moment of its last answer while it is in a call; None while its turn runs.
    """

    size: float
    entered: float
    called: float | None = None


class ProgramGate:
    """Programs inside, and turns in line. Moments are seconds on one clock.

    Args:
        room: tokens that programs inside may have; it may be changed at any time.
        quantum: seconds that a program may stay while others wait.
        half_life: seconds of a call in which a program's weight halves.
    """

    def __init__(self, room: float, quantum: float, half_life: float) -> None:
        if min(quantum, half_life) <= 0:
            raise ValueError(f"quantum {quantum} and half_life {half_life} must be above 0 s")
        self.room, self.quantum, self.half_life = room, quantum, half_life
        self._inside: dict[Key, Inside] = {}
        self._line: deque[tuple[Key, float]] = deque()  # with the size
        self._running, self._idle = 0, 0.0  # programs, and since when there are none

    @property
    def waiting(self) -> int:
        """Turns in line."""
        return len(self._line)

    @property
    def inside(self) -> int:
        """Programs inside."""
        return len(self._inside)

    def working_set(self, now: float) -> float:
        """Return the tokens of the programs inside, by their weights."""
        return sum(self._weight(each, now) for each in self._inside.values())

    def request(self, program: Key, size: float, now: float) -> bool:
        """Request a turn with a context of ``size`` tokens of its own. Return whether the program
        may go on now; else ``admit`` will return it."""
        self._leave(now)
        found = self._inside.get(program)
        if found is None:
            self._line.append((program, size))
            return False
        found.size, found.called = size, None
        self._running += 1
        return True

    def answered(self, program: Key, size: float, now: float) -> None:
        """Note that the turn of a program was answered, and its call begins."""
        found = self._inside[program]
        found.size, found.called = size, now
        self._running, self._idle = self._running - 1, now

    def ended(self, program: Key, now: float) -> None:
        """Forget a program, wherever it is."""
        found = self._inside.pop(program, None)
        if found is None:
            self._line = deque(each for each in self._line if each[0] != program)
        elif found.called is None:
            self._running, self._idle = self._running - 1, now

    def admit(self, now: float) -> list[Key]:
        """Return the programs whose turns in line may go on now. To be called whenever a turn is
        requested or answered, a program ends or time has passed."""
        if not self._line:
            return []
        self._leave(now)
        found: list[Key] = []
        used = self.working_set(now)
        while self._line:
            program, size = self._line[0]
            idle = not self._running and (not self._inside or now - self._idle >= PATIENCE)
            if used + size > self.room and not idle:
                break
            self._line.popleft()
            self._inside[program] = Inside(size, now)
            self._running += 1
            used += size
            found.append(program)
        return found

    def _leave(self, now: float) -> None:
        """Put out the programs in a call that have used their quantum, where others wait."""
        if self._line:
            over = [
                key
                for key, each in self._inside.items()
                if each.called is not None and now - each.entered >= self.quantum
            ]
            for key in over:
                del self._inside[key]

    def _weight(self, each: Inside, now: float) -> float:
        if each.called is None:
            return each.size
        return each.size * math.pow(0.5, (now - each.called) / self.half_life)
