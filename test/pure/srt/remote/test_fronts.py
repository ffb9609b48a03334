"""Fronts without sockets: numbers, turns, limits and frames of every kind, over the real engine."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from helpers.remote_child import expected_text, facts_of, make_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.call_hints import CallHint
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import (
    Advance,
    Append,
    Close,
    Control,
    Done,
    Event,
    Failed,
    ForkContext,
    Generate,
    LoadAdapter,
    Open,
    Park,
    Reply,
    Tokens,
    Truncate,
    Verb,
    decode_events,
    encode,
)
from sglang.srt.core.space_messages import (
    AllocPages,
    CloseSpace,
    ForwardDone,
    ForwardTokens,
    ListExports,
    OpenSpace,
    SpaceEnded,
    SpaceReply,
)
from sglang.srt.remote.front_numbers import OWN
from sglang.srt.remote.front_session import FrontSession, Refused
from sglang.srt.remote.fronts import FrontLimits, Fronts
from sglang.srt.remote.handshake import EngineWelcome, Expected, FrontHello, messages_digest
from sglang.srt.remote.remote_frames import (
    HEADER,
    MAGIC,
    PROTOCOL,
    FrameError,
    FrameHeader,
    FrameOrder,
    Kind,
    body_of,
    header_of,
    packed,
    text_of,
)


class Bench:
    """An engine, its fronts, and what each front has been sent."""

    def __init__(self, limits: FrontLimits = FrontLimits()) -> None:  # noqa: B008
        self.engine = make_engine()
        self.fronts = Fronts(facts_of(self.engine), self.engine.store.contexts, limits, boot=5)
        self.epochs: dict[bytes, int] = {}
        self.sent: dict[bytes, int] = {}
        self.events: dict[bytes, list[Event]] = {}
        self.ended: dict[bytes, str] = {}

    def close(self) -> None:
        self.engine.close()

    def join(self, identity: bytes) -> None:
        hello = FrontHello(name="test", expected=Expected(), messages=messages_digest())
        body = msgspec.msgpack.encode(hello)
        self.fronts.take(identity, packed(Kind.HELLO, 77, 0, body), 0.0)
        self.flush()

    def frame(self, identity: bytes, kind: Kind, body: bytes = b"") -> bytes:
        self.sent[identity] += 1
        return packed(kind, self.epochs[identity], self.sent[identity], body)

    def send(self, identity: bytes, *verbs: Verb) -> None:
        frame = self.frame(identity, Kind.VERBS, encode(list(verbs)))
        self.fronts.take(identity, frame, 0.0)

    def flush(self) -> None:
        outbox, self.fronts.outbox = self.fronts.outbox, []
        for identity, frame in outbox:
            header = header_of(frame)
            if header.kind is Kind.WELCOME:
                welcome = msgspec.msgpack.decode(body_of(frame), type=EngineWelcome)
                self.epochs[identity], self.sent[identity] = welcome.epoch, 0
                self.events[identity] = []
            elif header.kind is Kind.EVENTS:
                assert header.epoch == self.epochs[identity]
                self.events[identity] += decode_events(body_of(frame))
            elif header.kind in (Kind.ENDED, Kind.REFUSED):
                self.ended[identity] = text_of(frame)

    def turn(self) -> Sequence[Verb]:
        """A turn of the engine's loop; the verbs that it got."""
        verbs = self.fronts.verbs()
        events = self.engine.handle(verbs)
        if self.engine.busy:
            events += self.engine.step()
        self.fronts.events(events)
        self.flush()
        return verbs

    def run(self) -> None:
        """Turns until there is nothing to do."""
        for _ in range(5000):
            if not self.turn() and not self.engine.busy and not self.fronts.waiting:
                return
        raise AssertionError("no end")

    def text(self, identity: bytes, request: int) -> list[int]:
        events = [e for e in self.events[identity] if not isinstance(e, (Reply, SpaceEnded))]
        mine = [e for e in events if e.request == request]
        assert isinstance(mine[-1], Done)
        return [token for e in mine if isinstance(e, Tokens) for token in e.tokens]


@pytest.fixture
def bench() -> Any:
    made = Bench()
    yield made
    made.close()


def generate(context: int, request: int, prompt: list[int], count: int = 8) -> list[Verb]:
    params = SamplingParams(max_new_tokens=count, temperature=0.0, ignore_eos=True)
    return [
        Open(context, ints(prompt).tobytes()),
        Advance(context, request, Generate(params), close=True),
    ]


A, B = b"A", b"B"


def test_equal_numbers_of_two_fronts_do_not_meet(bench: Bench) -> None:
    for identity, prompt in ((A, [4]), (B, [5, 6])):
        bench.join(identity)
        bench.send(identity, *generate(1, 2, prompt), Open(3, ints(prompt).tobytes()))
    bench.run()
    assert bench.text(A, 2) == expected_text([4], 8)
    assert bench.text(B, 2) == expected_text([5, 6], 8)
    bench.send(A, Close(3), Close(9))
    bench.run()
    (left,) = bench.engine.store.contexts.values()
    assert list(left.tokens) == [5, 6], "B's own"
    assert bench.engine.stats.bad_verbs == 0


def test_what_a_front_leaves_is_closed_and_nothing_else(bench: Bench) -> None:
    for identity in (A, B):
        bench.join(identity)
        bench.send(identity, Open(1, ints([1, 2]).tobytes()), ForkContext(1, 2))
        bench.send(identity, *generate(3, 4, [7], 2000))
    for _ in range(5):
        bench.turn()
    assert len(bench.engine.running) == 2
    bench.send(A, Open(8, b"\0\0\0\0"))  # not handed over any more
    bench.fronts.take(A, bench.frame(A, Kind.LEAVE), 0.0)
    bench.turn()
    assert len(bench.engine.store.contexts) == 3
    assert len(bench.engine.running) == 1
    assert bench.fronts.counts.closed_contexts == 3
    bench.fronts.gone(B)
    bench.run()
    assert not bench.engine.store.contexts
    assert bench.engine.stats.aborted == bench.engine.stats.received == 2
    bench.engine.store.check()


def test_spaces_of_a_front_are_its_own_and_end_with_it(bench: Bench) -> None:
    for identity in (A, B):
        bench.join(identity)
        bench.send(
            identity, OpenSpace(1), AllocPages(1, ints([0, 1]).tobytes()),
            ForwardTokens(1, 7, ints([5, 6]).tobytes(), written=ints([0, 1]).tobytes()),
            ListExports(1, 8),
        )  # fmt: skip
    bench.run()
    for identity in (A, B):
        found = [(type(e), e.space, e.request) for e in bench.events[identity]]  # type: ignore[union-attr]
        assert sorted(found, key=str) == [(ForwardDone, 1, 7), (SpaceReply, 1, 8)]
    holder = bench.engine.store.holder
    assert holder is not None
    assert holder.held == 4
    bench.fronts.gone(A)
    bench.run()
    assert holder.held == 2
    bench.send(B, CloseSpace(1))
    bench.run()
    assert holder.held == 0
    bench.fronts.gone(B)
    assert bench.fronts.verbs() == [], "what is closed is not closed again"


def test_verbs_go_in_turn_by_their_costs(bench: Bench) -> None:
    """A front with a thousand costly requests: another's requests need two steps."""
    bench.join(A)
    bench.join(B)
    for n in range(1000):  # equal stops would count once
        params = SamplingParams(
            max_new_tokens=1, stop_regex=(f"(a|b){{1,900}}c{n}",), temperature=0.0
        )
        bench.send(A, Open(2 * n + 1, b"\1\0\0\0"), Advance(2 * n + 1, 2 * n + 2, Generate(params)))
    assert bench.fronts.verbs(), "A alone, at first"
    bench.send(B, *(verb for n in range(20) for verb in generate(2 * n + 1, 2 * n + 2, [n])))
    got = [bench.fronts.verbs() for _ in range(2)]
    of_b = sum(isinstance(verb, Advance) and verb.request >> 40 == 2 for verb in got[0] + got[1])
    of_a = sum(isinstance(verb, Advance) and verb.request >> 40 == 1 for verb in got[0] + got[1])
    assert of_b == 20
    assert 0 < of_a <= 8


def test_arrivals_are_told_on_this_machines_clock(bench: Bench) -> None:
    bench.join(A)
    _, advance = generate(1, 2, [4])
    verb = msgspec.structs.replace(advance, arrived=1000.0)
    frame = bench.frame(A, Kind.VERBS, encode([verb]))
    sent = header_of(frame).sent
    bench.fronts.take(A, frame, sent + 50.0)
    (found,) = bench.fronts.verbs()
    assert isinstance(found, Advance)
    assert found.arrived == pytest.approx(1050.0)


def test_a_frame_that_is_read_late_arrived_when_it_was_sent(bench: Bench) -> None:
    bench.join(A)
    arrived = list[float]()
    for first, late in ((1, 0.0), (3, 9.0)):  # the second waits for a forward pass of 9 s
        _, advance = generate(first, first + 1, [4])
        verb = msgspec.structs.replace(advance, arrived=1000.0)
        frame = bench.frame(A, Kind.VERBS, encode([verb]))
        bench.fronts.take(A, frame, header_of(frame).sent + 50.0 + late)
        (found,) = bench.fronts.verbs()
        assert isinstance(found, Advance)
        arrived.append(found.arrived)
    assert arrived == pytest.approx([1050.0, 1050.0])


def test_programs_of_two_fronts_have_two_names(bench: Bench) -> None:
    for identity in (A, B):
        bench.join(identity)
        _, advance = generate(1, 2, [4])
        bench.send(identity, msgspec.structs.replace(advance, hint=CallHint("app", group=3)))
    hints = [verb.hint for verb in bench.fronts.verbs() if isinstance(verb, Advance)]
    assert len({hint.program for hint in hints if hint}) == 2
    assert [hint.group for hint in hints if hint] == [3, 3]


def test_contexts_beyond_the_limit_are_busy() -> None:
    bench = Bench(FrontLimits(contexts=4))
    for identity in (A, B):
        bench.join(identity)
        for n in range(6):  # each ends with its request
            bench.send(identity, *generate(10 + n, 20 + n, [n]))
            bench.run()
    assert bench.fronts.counts.denied_contexts == 0
    bench.send(A, *(Open(n, b"\1\0\0\0") for n in range(1, 6)), *generate(6, 7, [1]))
    bench.send(B, *generate(1, 2, [3]))
    bench.run()
    failed = bench.events[A][-1]
    assert isinstance(failed, Failed)
    assert (failed.request, failed.code) == (7, "busy")
    assert "holds 4 contexts" in failed.message
    assert bench.text(B, 2) == expected_text([3], 8)
    assert bench.fronts.counts.denied_contexts == 2
    bench.send(A, Close(1), Close(6), *generate(8, 9, [2]))
    bench.run()
    assert bench.text(A, 9) == expected_text([2], 8)
    bench.close()


def test_a_context_that_is_closed_twice_makes_room_for_one() -> None:
    bench = Bench(FrontLimits(contexts=4))
    bench.join(A)
    bench.send(A, *(Open(n, b"\1\0\0\0") for n in range(1, 5)))
    bench.turn()
    bench.send(A, *[Close(1)] * 3, *(Open(n, b"\1\0\0\0") for n in range(5, 8)))
    bench.turn()
    assert len(bench.engine.store.contexts) == 4
    assert bench.fronts.counts.denied_contexts == 2
    bench.close()


def test_a_pause_ends_with_the_last_front_that_wants_it(bench: Bench) -> None:
    for identity in (A, B):
        bench.join(identity)
        bench.send(identity, Control(1, "pause"))
        bench.turn()
    bench.send(A, Control(2, "continue"))
    bench.turn()
    reply = bench.events[A][-1]
    assert isinstance(reply, Reply)
    assert (reply.id, reply.ok) == (2, False)
    assert bench.engine.paused
    bench.fronts.gone(B)
    bench.turn()
    assert not bench.engine.paused


def test_a_snapshot_has_the_fronts_own_requests(bench: Bench) -> None:
    for identity in (A, B):
        bench.join(identity)
        bench.send(identity, Open(5, b"\1\0\0\0"), *generate(6, 7, [1, 0]))
    bench.run()
    for identity in (A, B):
        bench.send(identity, *generate(3, 4, [7], 2000), Park(5))
    bench.turn()
    bench.send(A, Control(9, "tree", 50))
    bench.turn()
    (reply,) = [event for event in bench.events[A] if isinstance(event, Reply)]
    assert [(r["context"], r["request"]) for r in reply.data["running"]] == [(3, 4)]
    assert [p["id"] for p in reply.data["parked"]] == [5]
    bench.send(A, Control(10, "stats"))
    bench.turn()
    *_, stats = [event for event in bench.events[A] if isinstance(event, Reply)]
    assert stats.data["fronts"] == 2


BAD_BODIES = {
    "no MessagePack": b"\xc1",
    "no list of verbs": encode([{"type": "nope"}]),
    "a number that is none": encode([Close(0)]),
    "a number too large": encode([Close(OWN + 1)]),
    "a negative number": encode([Advance(1, -1, Generate(SamplingParams()))]),
    "an adapter's number": encode([LoadAdapter(1 << 60, "a", "b")]),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_frame_that_is_no_list_of_verbs_ends_its_session(name: str, bench: Bench) -> None:
    for identity in (A, B):
        bench.join(identity)
        bench.send(identity, *generate(1, 2, [4]))
    bench.fronts.take(A, bench.frame(A, Kind.VERBS, BAD_BODIES[name]), 0.0)
    bench.run()
    assert "is no list of verbs" in bench.ended[A]
    assert bench.fronts.counts.broken_sessions == bench.fronts.count == 1
    assert bench.text(B, 2) == expected_text([4], 8)
    assert not bench.engine.store.contexts


def test_a_front_that_greets_anew_begins_anew(bench: Bench) -> None:
    bench.join(A)
    bench.send(A, Open(1, b"\1\0\0\0"))
    bench.turn()
    bench.join(A)  # the same HELLO once more
    assert bench.fronts.counts.front_sessions == 1
    hello = FrontHello(name="test", expected=Expected(), messages=messages_digest())
    bench.fronts.take(A, packed(Kind.HELLO, 78, 0, msgspec.msgpack.encode(hello)), 0.0)
    bench.run()
    assert bench.fronts.counts.front_sessions == 2
    assert bench.fronts.count == 1
    assert not bench.engine.store.contexts


def test_a_hello_nested_deeply_is_refused_and_fronts_go_on(bench: Bench) -> None:
    bench.join(A)
    hello = FrontHello(name="test", expected=Expected(), messages=messages_digest())
    fields = msgspec.to_builtins(hello)
    body = msgspec.msgpack.encode({**fields, "later": 1})[:-1] + b"\x91" * 100_000 + b"\xc0"
    bench.fronts.take(B, packed(Kind.HELLO, 78, 0, body), 0.0)
    bench.flush()
    assert "cannot be read" in bench.ended[B]
    bench.send(A, *generate(1, 2, [4]))
    bench.run()
    assert bench.text(A, 2) == expected_text([4], 8)


def test_a_welcome_nested_deeply_is_refused(bench: Bench) -> None:
    session = FrontSession(Expected())
    facts = msgspec.to_builtins(facts_of(bench.engine))
    body = msgspec.msgpack.encode({"epoch": 5, "facts": facts, "later": 1})[:-1]
    greeting = header_of(session.hello()).epoch
    with pytest.raises(Refused, match="its facts cannot be read"):
        session.take(packed(Kind.WELCOME, greeting, 0, body + b"\x91" * 100_000 + b"\xc0"))


# -- histories -------------------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_random_fronts_leave_nothing_and_read_their_own_texts(data: st.DataObject) -> None:
    """Fronts that come, work, repeat frames, break and go, in any order."""
    bench, rng = Bench(), random.Random(data.draw(st.integers(0, 1 << 32)))
    wanted: dict[tuple[bytes, int, int], list[int]] = {}
    numbers = dict.fromkeys((A, B, b"C"), 1)
    for action in data.draw(st.lists(st.sampled_from("jjssssttrgblf"), max_size=40)):
        identity = rng.choice((A, B, b"C"))
        here = identity in bench.fronts._fronts
        if action == "j" and not here:
            bench.join(identity)
        elif action == "s" and here:
            number = numbers[identity] = numbers[identity] + 2
            prompt = [rng.randrange(100) for _ in range(rng.randrange(1, 9))]
            count = rng.randrange(1, 12)
            bench.send(identity, *generate(number, number + 1, prompt, count))
            wanted[identity, bench.epochs[identity], number + 1] = expected_text(prompt, count)
        elif action == "f" and here:
            number = numbers[identity] = numbers[identity] + 2
            more: list[Verb] = [
                Append(number, b"\2\0\0\0"),
                Truncate(number, 1),
                ForkContext(number, number + 1),
            ]
            bench.send(identity, Open(number, b"\1\0\0\0"), *rng.sample(more, 2))
        elif action == "r" and here:  # a frame of another session
            bench.fronts.take(identity, packed(Kind.VERBS, 1, 1, encode([Close(1)])), 0.0)
        elif action == "g":
            bench.fronts.take(identity, rng.randbytes(rng.randrange(60)), 0.0)
        elif action == "b" and here:
            bench.sent[identity] += 1  # a frame that is lost
            bench.send(identity, Close(1))
        elif action == "l" and here:
            bench.fronts.gone(identity)
        else:
            bench.turn()
    bench.run()
    for (identity, epoch, request), text in wanted.items():
        if identity in bench.fronts._fronts and bench.epochs[identity] == epoch:
            assert bench.text(identity, request) == text
    bench.fronts.end_all("the test is over")
    bench.run()
    stats = bench.engine.stats
    assert not bench.engine.store.contexts
    assert stats.received == stats.finished + stats.aborted
    bench.engine.store.check()
    bench.close()


KINDS = st.one_of(st.integers(0, 255), st.sampled_from([int(kind) for kind in Kind]))
SMALL = st.one_of(st.integers(0, 4), st.integers(0, (1 << 64) - 1))
FRAMES = st.one_of(
    st.binary(max_size=60),
    st.builds(
        lambda protocol, kind, epoch, number, sent, body: HEADER.pack(
            MAGIC, protocol, kind, epoch, number, sent) + body,
        st.one_of(st.just(PROTOCOL), st.integers(0, 255)), KINDS,
        st.one_of(SMALL, st.just((5 << 24) + 1)), SMALL, st.floats(), st.binary(max_size=40),
    ),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(FRAMES, max_size=6))
def test_no_frame_of_a_stranger_reaches_the_engine(frames: list[bytes]) -> None:
    fronts = Fronts(facts_of(ENGINE), {}, FrontLimits(), boot=5)
    for frame in frames:
        fronts.take(b"stranger", frame, 0.0)
    assert fronts.verbs() == []
    assert fronts.count == 0
    assert all(header_of(frame).kind is Kind.REFUSED for _, frame in fronts.outbox)


@pytest.mark.slow
@settings(max_examples=150)
@given(st.lists(FRAMES, max_size=6))
def test_no_frame_of_a_front_fails_the_engine(frames: list[bytes]) -> None:
    fronts = Fronts(facts_of(ENGINE), {}, FrontLimits(), boot=5)
    hello = FrontHello(name="x" * 5000, expected=Expected(), messages=messages_digest())
    fronts.take(A, packed(Kind.HELLO, 1, 0, msgspec.msgpack.encode(hello)), 0.0)
    for frame in frames:
        fronts.take(A, frame, 0.0)
        fronts.verbs()
    fronts.events([Reply((1 << 40) + 3), Reply(3), Failed(1 << 50, "busy", "")])
    assert fronts.count <= 2


@pytest.mark.slow
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6)), max_size=40))
def test_frames_are_taken_once_and_in_order(frames: list[tuple[bool, int]]) -> None:
    order, taken = FrameOrder(9), list[int]()
    for current, number in frames:
        header = FrameHeader(PROTOCOL, Kind.EVENTS, 9 if current else 8, number, 0.0)
        try:
            if order.accepts(header):
                taken.append(number)
        except FrameError:
            assert current
            assert number > len(taken) + 1
            break
    assert taken == list(range(1, len(taken) + 1))


ENGINE = make_engine()
ENGINE.close()
