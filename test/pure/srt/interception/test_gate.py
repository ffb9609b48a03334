"""The gate for programs: waits are bounded, nothing blocks, and a small memory is not thrashed."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.core.ints import ints
from sglang.srt.interception.gate import ANSWER, PATIENCE, ProgramGate
from sglang.srt.interception.working_set import WorkingSet, context_of

TICK = 0.25  # seconds between the moments at which time alone may change what the gate says


def blocks(program: int, size: int, common: int = 0) -> list[bytes]:
    """A context of ``size`` blocks; those with the same ``common`` begin alike so far."""
    own = [b"%d %d" % (program, i) for i in range(common, size)]
    return [b"common %d" % i for i in range(min(common, size))] + own


def asked(gate: ProgramGate, program: int, size: int, now: float) -> bool:
    """Request a turn that adds nothing."""
    return gate.request(program, blocks(program, size), 0.0, now)


def replied(gate: ProgramGate, program: int, size: int, now: float) -> None:
    gate.answered(program, blocks(program, size), 0.0, now)


@dataclass
class World:
    """Programs that request turns for ever: a turn takes its seconds, whatever else runs.

    Attributes:
        common: blocks with which all contexts begin.
        turns: (size, seconds of the turn, seconds of the call) of each program, in turn.
        waits: (turns in line before, seconds waited) of each turn that was in line.
    """

    gate: ProgramGate
    turns: list[list[tuple[int, float, float]]]
    common: int = 0
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
                    self.gate.answered(program, blocks(program, size, self.common), 0.0, now)
                    self.counts[program] = self.counts.get(program, 0) + 1
                    heapq.heappush(self.events, (now + pause, program, "due"))
                elif self.gate.request(program, blocks(program, size, self.common), 0.0, now):
                    self.begin(program, now)
                else:
                    self.line.append((program, len(self.line), now))
            self.admit(now)
            now = min(now + TICK, max(self.events[0][0], now) if self.events else seconds)

    def admit(self, now: float) -> None:
        ran = len(self.running)
        found = self.gate.admit(now)
        self.gate.check()
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
    st.integers(1, 200), st.floats(0.5, 30.0), st.floats(0.1, 20.0), st.integers(0, 40),
)  # fmt: skip
def test_no_turn_waits_longer_than_its_rounds(
    turns: list[list[tuple[int, float, float]]],
    room: int,
    quantum: float,
    half_life: float,
    common: int,
) -> None:
    """A program of any size, among others of any size: at most a round for each turn ahead of it
    and one more. The line is served in order, and is empty where nothing runs."""
    world = World(ProgramGate(room, quantum, half_life), turns, common)
    world.play(120.0)
    longest = max(seconds for own in turns for _, seconds, _ in own)
    for ahead, waited in world.waits:
        assert waited <= (ahead + 1) * (quantum + longest + TICK)
    for _, ahead, since in world.line:
        assert 120.0 - since <= (ahead + 1) * (quantum + longest + TICK)


def test_a_program_inside_continues_and_leaves_after_its_quantum() -> None:
    gate = ProgramGate(room=100, quantum=10.0, half_life=1e9)
    assert not asked(gate, 1, 80, 0.0)
    assert gate.admit(0.0) == [1]
    replied(gate, 1, 80, 1.0)
    assert not asked(gate, 2, 80, 1.0)
    assert gate.admit(1.0 + PATIENCE / 2) == [], "the first may soon be back"
    assert gate.admit(1.0 + PATIENCE) == [2], "nothing runs"
    assert asked(gate, 1, 90, 5.0)
    assert not asked(gate, 3, 5, 5.0)
    assert gate.admit(5.0) == []
    replied(gate, 1, 90, 9.0)
    assert gate.admit(9.0) == [], "80 are running, 90 are in a call"
    assert gate.admit(10.0) == [3], "the first has left"
    assert not asked(gate, 1, 90, 12.0)
    assert gate.inside == 2


def test_a_program_stays_where_no_other_waits() -> None:
    gate = ProgramGate(room=100, quantum=10.0, half_life=1.0)
    asked(gate, 1, 80, 0.0)
    gate.admit(0.0)
    replied(gate, 1, 80, 100.0)
    assert gate.admit(100.0) == []
    assert asked(gate, 1, 85, 101.0)


def test_a_long_call_gives_its_room_back() -> None:
    gate = ProgramGate(room=100, quantum=1e9, half_life=2.0)
    for program in (1, 2):
        asked(gate, program, 50, 0.0)
    assert gate.admit(0.0) == [1, 2]
    replied(gate, 1, 50, 0.0)
    asked(gate, 3, 25, 1.0)
    assert gate.admit(1.9) == []
    assert gate.working_set(2.0) == pytest.approx(75.0)
    assert gate.admit(2.0) == [3]


def test_a_program_that_ends_makes_room_wherever_it_is() -> None:
    gate = ProgramGate(room=100, quantum=10.0, half_life=1.0)
    for program in (1, 2, 3):
        asked(gate, program, 90, 0.0)
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


def test_what_programs_share_counts_once_and_in_full() -> None:
    """Also where one of them is in a call: the other needs it."""
    gate = ProgramGate(room=100, quantum=1e9, half_life=1.0)
    gate.request(1, blocks(1, 60, common=40), 0.0, 0.0)
    gate.request(2, blocks(2, 60, common=40), 0.0, 0.0)
    gate.request(3, blocks(3, 60, common=40), 0.0, 0.0)
    gate.request(4, blocks(4, 21), 0.0, 0.0)
    assert gate.admit(0.0) == [1, 2, 3], "40 and three times 20"
    gate.answered(1, blocks(1, 60, common=40), 0.0, 0.0)
    assert gate.working_set(1.0) == pytest.approx(90.0)
    assert gate.admit(1.0) == []
    gate.ended(2, 1.0)
    gate.ended(3, 1.0)
    assert gate.working_set(1.0) == pytest.approx(30.0)
    gate.request(2, blocks(2, 60, common=40), 0.0, 1.0)
    assert gate.admit(1.0) == [4, 2], "40 in full, 10, 21 and 20"
    assert gate.working_set(1.0) == pytest.approx(91.0)


def test_an_answer_counts_before_it_is_there() -> None:
    """The mean of the answers so far, but no more than the turn may add."""
    gate = ProgramGate(room=1000, quantum=1e9, half_life=1.0)
    gate.request(1, blocks(1, 10), 20.0, 0.0)
    gate.request(2, blocks(2, 10), 1e9, 0.0)
    assert gate.admit(0.0) == [1, 2]
    assert gate.working_set(0.0) == 10 + 20 + 10 + ANSWER
    for _ in range(200):
        gate.answered(1, blocks(1, 10), 8.0, 0.0)
        gate.request(1, blocks(1, 10), 1e9, 0.0)
    gate.answered(2, blocks(2, 10), 8.0, 0.0)
    assert gate.working_set(0.0) == pytest.approx(20 + 8, abs=0.1)


def test_a_broken_turn_leaves_nothing_in_line() -> None:
    gate = ProgramGate(room=100, quantum=10.0, half_life=1e9)
    for program in (1, 2, 3):
        asked(gate, program, 90, 0.0)
    assert gate.admit(0.0) == [1]
    gate.broken(2, 0.0)
    assert (gate.waiting, gate.has_turn(2)) == (1, False)
    gate.broken(1, 0.0)
    assert gate.admit(0.0) == [], "its context may still be resumed"
    gate.lost(0.0)
    assert gate.inside == 0, "the engine was lost, and all KV with it"
    assert gate.admit(0.0) == [3]
    gate.check()


def test_a_program_has_one_turn_at_a_time() -> None:
    gate = ProgramGate(room=100, quantum=10.0, half_life=1.0)
    asked(gate, 1, 10, 0.0)
    for _ in range(2):
        with pytest.raises(ValueError, match="program 1 has a turn already"):
            asked(gate, 1, 10, 0.0)
        gate.admit(0.0)


def test_a_program_that_weighs_nothing_is_forgotten() -> None:
    gate = ProgramGate(room=100, quantum=1e9, half_life=1.0)
    asked(gate, 1, 64, 0.0)
    gate.admit(0.0)
    replied(gate, 1, 64, 0.0)
    for moment in (5.0, 7.0):
        assert not asked(gate, 2, 10, moment)
        assert gate.inside == (1 if moment == 5.0 else 0)
        gate.ended(2, moment)


@given(st.lists(st.integers(1, 30), min_size=2, max_size=5), st.floats(1.0, 20.0))
def test_a_tenant_waits_for_others_a_round_each(counts: list[int], quantum: float) -> None:
    """The first of each tenant is inside after as many rounds as there are tenants, whatever
    number of programs the others bring; each program fills the room and comes back at once."""
    gate = ProgramGate(room=10, quantum=quantum, half_life=1e9)
    tenants = {}
    for tenant, count in enumerate(counts):
        for i in range(count):
            program = 100 * tenant + i
            tenants[program] = str(tenant)
            gate.request(program, blocks(program, 10), 0.0, 0.0, str(tenant))
    now, seen, running = 0.0, set[str](), list[int]()
    while len(seen) < len(counts):
        for program in running:
            replied(gate, program, 10, now)
        running = []
        for admitted in gate.admit(now):
            assert isinstance(admitted, int)
            program = admitted
            seen.add(tenants[program])
            running.append(program)
        gate.check()
        assert now <= len(counts) * (quantum + PATIENCE + 2 * TICK)
        now += TICK


@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.lists(st.integers(0, 1), max_size=6), st.booleans()),
        max_size=20,
    )
)
def test_working_set_counts_are_those_of_its_contexts(
    steps: list[tuple[int, list[int], bool]],
) -> None:
    found, contexts = WorkingSet(), dict[int, list[bytes]]()
    for holder, tokens, gone in steps:
        if gone and holder in contexts:
            found.drop(holder)
            del contexts[holder]
            continue
        context = [bytes(tokens[: i + 1]) for i in range(len(tokens))]
        held = [block for other in contexts.values() for block in other]
        fresh, alone = found.met(context)
        assert fresh == sum(block not in held for block in context)
        assert sum(alone.values()) == sum(held.count(block) == 1 for block in context)
        found.hold(holder, context)
        contexts[holder] = context
        found.check()


def test_contexts_have_the_blocks_in_common_that_they_begin_with() -> None:
    one, other = ints([1, 2, 3, 4, 5, 6, 7]), ints([1, 2, 3, 4, 9, 6])
    first, second = context_of(one, 2), context_of(other, 2)
    assert len(first) == len(second) == 3
    assert [a == b for a, b in zip(first, second)] == [True, True, False]
    assert not set(first) & set(context_of(one, 2, "another namespace"))


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
            if gate is None or asked(gate, program, 1, now):
                queue.append(program)
        admitted: list[Any] = list(gate.admit(now)) if gate is not None else []
        queue += admitted
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
            replied(gate, program, 1, now)
        heapq.heappush(due, (now + 0.5, program))
    return count


def test_a_memory_too_small_for_all_is_not_thrashed() -> None:
    """Four times as many turns, with three times as many programs as memory holds."""
    assert served(30, ProgramGate(9.0, 20.0, 10.0)) >= 4 * served(30, None)
    assert served(8, ProgramGate(9.0, 20.0, 10.0)) == served(8, None)
    assert served(30, ProgramGate(30.0, 20.0, 10.0)) == served(30, None), "as without a gate"
