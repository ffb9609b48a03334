"""Dispatch: order, batching, conflicts and policies, against a brute-force reference."""

from __future__ import annotations

import itertools
import math
import random
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence

import pytest
from helpers.mutation import Mutation, caught, drop, mutate
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.inferlet.dispatch import Command, CommandQueue, Dispatcher, contains
from sglang.srt.inferlet.dispatch_policies import (
    FIXED_SECONDS,
    FIXED_SIZE,
    POLICIES,
    Situation,
)
from sglang.srt.inferlet.runnable_programs import RunnablePrograms

KINDS = ("forward", "memory")
SLOTS = st.lists(st.integers(0, 4), max_size=2, unique=True)
COMMANDS = st.builds(Command, st.integers(0, 3), st.sampled_from(KINDS), SLOTS, SLOTS, SLOTS)


def reference_batch(
    pending: dict[int, list[Command]], flying: dict[int, list[Command]],
    priorities: dict[int, int], most: int,
) -> list[Command]:  # fmt: skip
    """The next batch, by the rules of section 5.2, every prefix of every queue tried."""

    def clash(a: Command, b: Command) -> bool:
        writes = set(b.writes) & {*a.writes, *a.reads, *a.needs}
        return bool(writes) or bool(set(b.needs) & set(a.writes))

    heads: dict[str, list[Command]] = {}
    for queue, commands in pending.items():
        for size in range(len(commands), 0, -1):
            run = commands[:size]
            pairs = itertools.combinations(run, 2)
            if (
                len({one.kind for one in run}) == 1
                and not any(clash(a, b) for a, b in pairs)
                and not any(clash(a, b) for a in flying.get(queue, ()) for b in run)
            ):
                heads.setdefault(run[0].kind, []).extend(run)
                break
    if not heads:
        return []
    kind = min(heads, key=lambda one: min(command.number for command in heads[one]))
    ranked = sorted(heads[kind], key=lambda one: (-priorities.get(one.queue, 0), one.number))
    return ranked[:most]


@settings(max_examples=150)
@given(
    st.lists(
        st.one_of(
            COMMANDS,
            st.tuples(st.just("take"), st.integers(1, 5)),
            st.tuples(st.just("end"), st.integers(0, 9)),
            st.tuples(st.just("priority"), st.integers(0, 3)),
        ),
        max_size=40,
    ),
    st.integers(1, 5),
)
def test_batches_are_those_of_the_rules(steps: list[object], most: int) -> None:
    dispatcher = Dispatcher(POLICIES["adaptive"], most)
    pending: dict[int, list[Command]] = {}
    flying: dict[int, list[Command]] = {}
    priorities: dict[int, int] = {}
    left: dict[int, list[int]] = {}
    for now, step in enumerate(steps):
        if isinstance(step, Command):
            own = Command(step.queue, step.kind, step.reads, step.needs, step.writes)
            dispatcher.put(own, now)
            pending.setdefault(own.queue, []).append(own)
        else:
            assert isinstance(step, tuple)
            if step[0] == "take":
                want = reference_batch(pending, flying, priorities, most)
                assert dispatcher.take(now) == want
                for command in want:
                    pending[command.queue].remove(command)
                    flying.setdefault(command.queue, []).append(command)
                    left.setdefault(command.queue, []).append(command.number)
            elif step[0] == "end":
                alive = [one for found in flying.values() for one in found]
                if alive:
                    command = alive[step[1] % len(alive)]
                    dispatcher.end(command, now)
                    flying[command.queue].remove(command)
            else:
                priorities[step[1]] = priorities.get(step[1], 0) + 1
                dispatcher.prioritize(step[1], priorities[step[1]])
        for queue in range(4):
            quiet = not pending.get(queue) and not flying.get(queue)
            assert dispatcher.quiet(queue) == quiet
    assert all(numbers == sorted(numbers) for numbers in left.values())


@given(st.lists(COMMANDS, max_size=30))
def test_everything_leaves_and_ends(commands: list[Command]) -> None:
    dispatcher = Dispatcher(POLICIES["adaptive"], 4)
    for command in commands:
        dispatcher.put(Command(command.queue, command.kind, command.reads, command.needs,
                               command.writes), 0.0)  # fmt: skip
    left = 0
    while dispatcher.delay(1.0, 0) is not None:
        assert dispatcher.delay(1.0, 0) == 0.0
        batch = dispatcher.take(1.0)
        assert batch
        left += len(batch)
        for command in batch:
            dispatcher.end(command, 2.0)
    assert left == len(commands) == dispatcher.left


def queue_history(seed: int) -> None:
    """Commands come, leave and end; each head is the one that a queue without a memory finds."""
    r = random.Random(seed)
    dispatcher = Dispatcher(POLICIES["adaptive"], 3)
    flying: list[Command] = []
    for step in range(60):
        now = float(step)
        match r.choice(["put", "put", "take", "end", "prioritize"]):
            case "put":
                slots = [r.randrange(6) for _ in range(3)]
                dispatcher.put(Command(r.randrange(3), r.choice("aab"), slots[:1], (), slots[2:]),
                               now)  # fmt: skip
            case "take":
                flying += dispatcher.take(now)
            case "end" if flying:
                dispatcher.end(flying.pop(r.randrange(len(flying))), now)
            case "prioritize":
                dispatcher.prioritize(r.randrange(3), r.randrange(3))
        dispatcher.delay(now, 0)
        for queue in dispatcher.queues.values():
            fresh = CommandQueue(0, deque(queue.pending), list(queue.flying))
            assert queue.head(3) == fresh.head(3)


def test_heads_are_those_of_a_fresh_queue() -> None:
    for seed in range(60):
        queue_history(seed)


@pytest.mark.parametrize("name", ["put", "take", "end"])
def test_a_stale_head_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, Mutation(Dispatcher, name, "queue.found = None", drop))
    assert caught(queue_history, range(60))


def test_a_pass_may_read_its_writes_but_not_write_its_reads() -> None:
    def together(*commands: Command) -> bool:
        return CommandQueue(pending=deque(commands)).head(9) == list(commands)

    prefill = Command(0, "forward", writes=[0, 1])
    decode = Command(0, "forward", reads=[0, 1], writes=[2])
    assert together(prefill, decode)
    assert not together(decode, Command(0, "forward", writes=[1]))
    assert not together(prefill, Command(0, "forward", writes=[1]))
    assert not together(prefill, Command(0, "forward", needs=[1]))


class CountedSlots(list[int]):
    """Slots that count how often they are gone through."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        CountedSlots.looks += 1
        return super().__iter__()


@pytest.mark.parametrize(("most", "looked"), [(5000, 3 * 300), (8, 3 * 8)])
def test_a_head_is_found_in_one_walk_of_what_may_leave(most: int, looked: int) -> None:
    dispatcher = Dispatcher(POLICIES["adaptive"], most)
    for slot in range(300):
        dispatcher.put(Command(0, "memory", writes=CountedSlots([slot])), 0.0)
    CountedSlots.looks = 0
    assert dispatcher.delay(1.0, 0) == 0.0
    assert 0 < CountedSlots.looks <= looked
    assert len(dispatcher.take(1.0)) == min(most, 300)


def test_closed_queue_leaves_nothing_behind() -> None:
    dispatcher = Dispatcher(POLICIES["adaptive"], 9)
    for queue in (0, 1):
        dispatcher.put(Command(queue, "forward"), 0.0)
    [first, _] = dispatcher.take(0.0)
    dispatcher.close(0, 1.0)
    dispatcher.end(first, 2.0)
    assert dispatcher.delay(2.0, 0) is None
    dispatcher.put(Command(2, "forward"), 2.0)
    assert dispatcher.delay(2.0, 0) == math.inf  # the other queue's command is still in flight
    dispatcher.close(1, 3.0)
    assert dispatcher.delay(3.0, 0) == 0.0


@pytest.mark.parametrize(
    ("policy", "situation", "delay"),
    [
        ("eager", Situation(1), 0.0),
        ("eager", Situation(1, flying=1), math.inf),
        ("k", Situation(FIXED_SIZE - 1, waited=9.0), math.inf),
        ("k", Situation(FIXED_SIZE), 0.0),
        ("t", Situation(FIXED_SIZE), FIXED_SECONDS),
        ("t", Situation(1, waited=1.0), 0.0),
        ("adaptive", Situation(1, runnable=9), 0.0),
        ("adaptive", Situation(99, flying=1), math.inf),
        ("cohort", Situation(1), 0.0),
        ("cohort", Situation(1, runnable=1, last_pass=0.4), 0.1),
        ("cohort", Situation(1, quiet=0.06, runnable=1, last_pass=0.4), 0.04),
        ("cohort", Situation(1, quiet=0.1, runnable=1, last_pass=0.4), 0.0),
        ("cohort", Situation(1, waited=0.6, idle=0.35, runnable=1, last_pass=0.4), 0.05),
        ("cohort", Situation(1, waited=0.3, flying=1, last_pass=0.4), 0.2),
        ("cohort", Situation(1, waited=0.6, flying=1, last_pass=0.4), 0.0),
        ("cohort", Situation(1, flying=1, last_pass=0.4, ahead=1), 0.0),
        ("cohort", Situation(1, flying=1, runnable=1, last_pass=0.4, ahead=1), 0.1),
    ],
)
def test_policy_waits_as_long_as_it_says(policy: str, situation: Situation, delay: float) -> None:
    assert POLICIES[policy].delay(situation) == pytest.approx(delay)


PASS, ROW, TURN = 0.008, 0.00004, 0.0001  # seconds: a pass, each row of it, a program's turn


def simulate(policy: str, programs: int, tokens: int) -> tuple[float, float]:
    """(mean batch, tokens a second) of programs that take turns one after another on one core, and
    a device that computes one batch at a time."""
    dispatcher = Dispatcher(POLICIES[policy], 1 << 10)
    now, core = 0.0, 0.0
    wakes = [(0.0, number) for number in range(programs)]  # answers that were handed over
    done = [0] * programs
    device: tuple[float, list[Command]] | None = None
    while wakes or device or any(queue.pending for queue in dispatcher.queues.values()):
        delay = dispatcher.delay(now, len(wakes))
        moments = [math.inf if delay is None else now + delay]
        moments += [device[0]] if device else []
        moments += [max(core, min(wakes)[0] + TURN)] if wakes else []
        assert min(moments) < math.inf, "nothing will ever happen"
        now = max(now, min(moments))
        if device and device[0] <= now:
            for command in device[1]:
                dispatcher.end(command, now)
                done[command.queue] += 1
                if done[command.queue] < tokens:
                    wakes.append((now, command.queue))
            device = None
        elif wakes and max(core, min(wakes)[0] + TURN) <= now:
            _, number = wakes.pop(wakes.index(min(wakes)))
            core = now + TURN
            dispatcher.put(Command(number, "forward"), now)
        else:
            batch = dispatcher.take(now)
            start = max(now, device[0]) if device else now
            if device:
                device = (start + PASS + ROW * len(batch), device[1] + batch)
            else:
                device = (start + PASS + ROW * len(batch), batch)
    return dispatcher.left / dispatcher.batches, programs * tokens / now


def test_cohort_keeps_batches_whole_adaptive_beats_fixed_rates() -> None:
    """Table 5 by counters, at 128 programs: a turn takes 100 µs."""
    rates = {name: simulate(name, 128, 12) for name in POLICIES}
    batch = {name: found[0] for name, found in rates.items()}
    speed = {name: found[1] for name, found in rates.items()}
    assert batch["eager"] == 1
    assert batch["cohort"] >= 0.9 * 128
    assert speed["adaptive"] >= 5 * speed["eager"]
    assert speed["adaptive"] > speed["k"]
    assert speed["adaptive"] >= 0.99 * speed["t"]
    # At 32 programs the turns are short beside a pass, and whole batches are the faster ones.
    assert simulate("cohort", 32, 12)[1] >= 1.2 * simulate("adaptive", 32, 12)[1]


def test_what_runs_ahead_is_not_in_flight_for_others() -> None:
    dispatcher = Dispatcher(POLICIES["cohort"], 9)
    first = Command(0, "forward", writes=[0])
    dispatcher.put(first, 0.0)
    second = Command(0, "forward", reads=[0], writes=[1], follows=first)
    dispatcher.put(second, 0.0)
    assert dispatcher.take(0.0) == [first, second]
    dispatcher.end(first, 1.0)
    assert dispatcher.last_pass == 1.0
    third = Command(0, "forward", reads=[0, 1], writes=[2], follows=second)
    dispatcher.put(third, 1.1)
    dispatcher.put(Command(1, "forward"), 1.1)  # this program has no futures
    assert dispatcher.delay(1.1, 0) == 0.0
    assert len(dispatcher.take(1.1)) == 2
    dispatcher.end(second, 1.5)
    assert dispatcher.last_pass == 0.5  # from the end of the first one on
    assert second.follows is None
    dispatcher.put(Command(2, "forward"), 1.5)
    later = dispatcher.delay(1.5, 0)
    assert later is not None
    assert later > 0  # the other program's command is awaited
    dispatcher.close(1, 1.6)
    assert dispatcher.delay(1.6, 0) == 0.0
    dispatcher.close(0, 1.7)
    assert dispatcher._flying == dispatcher._ahead == 0


def test_closed_queue_forgets_what_runs_ahead() -> None:
    dispatcher = Dispatcher(POLICIES["cohort"], 1)
    first = Command(0, "forward")
    dispatcher.put(first, 0.0)
    dispatcher.put(Command(0, "forward", follows=first), 0.0)
    dispatcher.take(0.0)
    dispatcher.close(0, 0.0)
    assert dispatcher._flying == dispatcher._ahead == 0


@pytest.mark.parametrize("slots", [[3, 1, 2], array("i", [3, 1, 2]), array("i", [256, 65536, 1])])
def test_a_slot_is_found_among_those_that_are_read(slots: Sequence[int]) -> None:
    for slot in (0, 1, 2, 3, 256, 257, 65536, 1 << 24):
        assert contains(slots, slot) == (slot in list(slots))


@given(st.lists(COMMANDS, max_size=12))
def test_heads_are_the_same_whatever_holds_the_slots(commands: list[Command]) -> None:
    def head(kind: Callable[[list[int]], Sequence[int]]) -> int:
        own = [
            Command(0, one.kind, kind(list(one.reads)), kind(list(one.needs)),
                    kind(list(one.writes)))
            for one in commands
        ]  # fmt: skip
        return len(CommandQueue(pending=deque(own)).head(99))

    assert head(list) == head(lambda slots: array("i", slots))


def rows_of_passes(programs: int, tokens: int, stalled: range, ahead: int) -> list[int]:
    """Rows of each pass of straight loops, whose control layer handles no answer during the passes
    ``stalled``. A turn takes 0.1 ms, a pass 8 ms; each program has ``ahead`` forwards beyond the
    one that it reads."""
    dispatcher = Dispatcher(POLICIES["cohort"], 1 << 10)
    rows: list[int] = []
    latest: dict[int, Command] = {}
    sent, told = [0] * programs, [0] * programs
    engine: list[Command] = []
    answers: list[int] = list(range(programs))
    now = 0.0
    while min(told) < tokens and len(rows) < 10 * tokens:
        until = now + PASS
        computed: list[Command] = []
        for command in engine:  # a row whose token is known; one of a program in a pass
            first = command.follows is None or command.follows.ended > 0
            if first and command.queue not in {one.queue for one in computed}:
                computed.append(command)
        if len(rows) not in stalled:
            for number in answers:
                now += TURN
                while sent[number] < min(told[number] + ahead + 1, tokens):
                    slot = sent[number]
                    command = Command(number, "forward", range(slot), (), [slot],
                                      latest.get(number) if slot else None)  # fmt: skip
                    if command.follows is not None and command.follows.ended:
                        command.follows = None
                    dispatcher.put(command, now)
                    latest[number] = command
                    sent[number] += 1
            answers = []
            while dispatcher.delay(now, 0) == 0.0:
                engine += dispatcher.take(now)
        now = max(now, until)
        for command in computed:
            engine.remove(command)
            dispatcher.end(command, now)
            command.ended = now
            told[command.queue] += 1
            answers.append(command.queue)
        rows.append(len(computed))
    return rows


@pytest.mark.parametrize("ahead", [1, 2])
def test_straight_loops_fill_passes_one_pass_after_a_stall(ahead: int) -> None:
    rows = rows_of_passes(32, 20, range(8, 11), ahead)
    assert rows[1 : 8 + ahead] == [32] * (7 + ahead)  # the first pass had nothing to compute
    empty = [number for number, count in enumerate(rows) if not count]
    assert rows[empty[-1] + 1 :] == [32] * len(rows[empty[-1] + 1 :])
    assert empty == [0, *range(8 + ahead, 12)]
    assert sum(rows) == 32 * 20


def test_program_busy_with_its_own_code_is_absent_until_it_rests() -> None:
    programs = RunnablePrograms()
    programs.wake("busy", 0.0)
    programs.wake("quick", 0.3)
    assert programs.awaited(0.3, 0.4) == 2
    programs.rest("quick")
    assert programs.awaited(0.4, 0.4) == 0
    assert len(programs) == 1
    programs.wake("quick", 0.5)
    assert programs.awaited(0.5, 9.9) == 1  # "busy" stays absent, however long a pass is now
    programs.rest("busy")
    programs.wake("busy", 0.6)
    assert programs.awaited(0.6, 0.4) == 2
