"""The gate for programs: waits are bounded, nothing blocks, and a small memory is not thrashed."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.interception.gate import PATIENCE, ProgramGate

TICK = 0.25  # seconds between the moments at which time alone may change what the gate says


@dataclass
class World:
    """Programs that request turns for ever: a turn takes its seconds, whatever else runs.

    Attributes:
        turns: (size, seconds of the turn, seconds of the call) of each program, in turn.
        waits: (turns in line before, seconds waited) of each turn that was in line.
    """

    gate: ProgramGate
    turns: list[list[tuple[int, float, float]]]
    events: list[tuple[float, int, str]] = field(default_factory=list)
    counts: dict[int, int] = field(default_factory=dict)
    line: list[tuple[int, int, float]] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    waits: list[tuple[int, float]] = field(default_factory=list)
    idle: float = 0.0

    def turn(self, program: int) -> tuple[int, float, float]:
        own = self.turns[program]
        return own[self.counts.get(program, 0) % len(own)]

    def begin(self, program: int, now: float) -> None:
        self.running.add(program)
        heapq.heappush(self.events, (now + self.turn(program)[1], program, "answered"))

    def play(self, seconds: float) -> None:
        now = 0.0
        for program in range(len(self.turns)):
            heapq.heappush(self.events, (0.0, program, "due"))
        while now < seconds:
            while self.events and self.events[0][0] <= now:
                _, program, kind = heapq.heappop(self.events)
                size, _, pause = self.turn(program)
                if kind == "answered":
                    self.running.remove(program)
                    self.gate.answered(program, size, now)
                    self.counts[program] = self.counts.get(program, 0) + 1
                    heapq.heappush(self.events, (now + pause, program, "due"))
                elif self.gate.request(program, size, now):
                    self.begin(program, now)
                else:
                    self.line.append((program, len(self.line), now))
            self.admit(now)
            now = min(now + TICK, max(self.events[0][0], now) if self.events else seconds)

    def admit(self, now: float) -> None:
        ran = len(self.running)
        found = self.gate.admit(now)
        assert found == [program for program, _, _ in self.line[: len(found)]], "out of line"
        for program, ahead, since in self.line[: len(found)]:
            self.waits.append((ahead, now - since))
            self.begin(program, now)
        del self.line[: len(found)]
        assert self.gate.waiting == len(self.line)
        self.idle = now if self.running else self.idle
        assert not self.line or now - self.idle <= PATIENCE + TICK, "nothing runs, a turn waits"
        if len(found) > (ran == 0):
            assert self.gate.working_set(now) <= self.gate.room * (1 + 1e-9), "too many admitted"


TURNS = st.tuples(st.integers(1, 100), st.floats(0.1, 3.0), st.floats(0.0, 20.0))


@given(
    st.lists(st.lists(TURNS, min_size=1, max_size=4), min_size=1, max_size=12),
    st.integers(1, 200), st.floats(0.5, 30.0), st.floats(0.1, 20.0),
)  # fmt: skip
def test_no_turn_waits_longer_than_its_rounds(
    turns: list[list[tuple[int, float, float]]], room: int, quantum: float, half_life: float
) -> None:
    """A program of any size, among others of any size: at most a round for each turn ahead of it
    and one more. The line is served in order, and is empty where nothing runs."""
    world = World(ProgramGate(room, quantum, half_life), turns)
    world.play(120.0)
    longest = max(seconds for own in turns for _, seconds, _ in own)
    for ahead, waited in world.waits:
        assert waited <= (ahead + 1) * (quantum + longest + TICK)
    for _, ahead, since in world.line:
        assert 120.0 - since <= (ahead + 1) * (quantum + longest + TICK)


def test_a_program_inside_goes_on_at_once_and_leaves_after_its_quantum() -> None:
    gate = ProgramGate(room=100, quantum=10.0, half_life=1e9)
    assert not gate.request(1, 80, 0.0)
    assert gate.admit(0.0) == [1]
    gate.answered(1, 80, 1.0)
    assert not gate.request(2, 80, 1.0)
    assert gate.admit(1.0 + PATIENCE / 2) == [], "the first may soon be back"
    assert gate.admit(1.0 + PATIENCE) == [2], "nothing runs"
    assert gate.request(1, 90, 5.0)
    assert not gate.request(3, 5, 5.0)
    assert gate.admit(5.0) == []
    gate.answered(1, 90, 9.0)
    assert gate.admit(9.0) == [], "80 are running, 90 are in a call"
    assert gate.admit(10.0) == [3], "the first has left"
    assert not gate.request(1, 90, 12.0)
    assert gate.inside == 2


def test_a_program_stays_where_no_other_waits() -> None:
    gate = ProgramGate(room=100, quantum=10.0, half_life=1.0)
    gate.request(1, 80, 0.0)
    gate.admit(0.0)
    gate.answered(1, 80, 100.0)
    assert gate.admit(100.0) == []
    assert gate.request(1, 85, 101.0)


def test_a_long_call_gives_its_room_back() -> None:
    gate = ProgramGate(room=100, quantum=1e9, half_life=2.0)
    for program in (1, 2):
        gate.request(program, 50, 0.0)
    assert gate.admit(0.0) == [1, 2]
    gate.answered(1, 50, 0.0)
    gate.request(3, 25, 1.0)
    assert gate.admit(1.9) == []
    assert gate.working_set(2.0) == pytest.approx(75.0)
    assert gate.admit(2.0) == [3]


def test_a_program_that_ends_makes_room_wherever_it_is() -> None:
    gate = ProgramGate(room=100, quantum=10.0, half_life=1.0)
    for program in (1, 2, 3):
        gate.request(program, 90, 0.0)
    assert gate.admit(0.0) == [1]
    gate.ended(2, 0.0)
    gate.ended(7, 0.0)
    assert gate.waiting == 1
    gate.ended(1, 0.0)
    assert gate.admit(0.0) == [3]
    assert gate.working_set(0.0) == 90


@pytest.mark.parametrize(("quantum", "half_life"), [(0.0, 1.0), (1.0, -1.0)])
def test_times_must_be_above_zero(quantum: float, half_life: float) -> None:
    with pytest.raises(ValueError, match="must be above 0"):
        ProgramGate(100, quantum, half_life)


def served(programs: int, gate: ProgramGate | None) -> int:
    """Turns answered in 200 s by one server whose memory has room for ten contexts, the least
    recently used going first: 0.05 s where the context is there, 1 s where it is not."""
    cached: OrderedDict[int, None] = OrderedDict()
    queue: list[int] = []
    due = [(0.0, program) for program in range(programs)]
    now, count = 0.0, 0
    while now < 200.0:
        while due and due[0][0] <= now:
            _, program = heapq.heappop(due)
            if gate is None or gate.request(program, 1.0, now):
                queue.append(program)
        queue += gate.admit(now) if gate is not None else []
        if not queue:
            now = due[0][0] if due else 200.0
            continue
        program = queue.pop(0)
        now += 0.05 if program in cached else 1.0
        cached[program] = None
        cached.move_to_end(program)
        while len(cached) > 10:
            cached.popitem(last=False)
        count += 1
        if gate is not None:
            gate.answered(program, 1.0, now)
        heapq.heappush(due, (now + 0.5, program))
    return count


def test_a_memory_too_small_for_all_is_not_thrashed() -> None:
    """Four times as many turns, with three times as many programs as memory holds."""
    assert served(30, ProgramGate(9.0, 20.0, 10.0)) >= 4 * served(30, None)
    assert served(8, ProgramGate(9.0, 20.0, 10.0)) == served(8, None)
    assert served(30, ProgramGate(30.0, 20.0, 10.0)) == served(30, None), "as without a gate"
