"""Messages: every kind survives the wire; a malformed frame raises and nothing else happens."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.ir.sampling import SamplingParams
from sglang.srt.core import messages as m
from sglang.srt.core import space_messages as sm
from sglang.srt.core.call_hints import CallHint
from sglang.srt.core.ints import ints
from sglang.srt.core.request_stats import CacheMiss, RequestStats

SAMPLING = SamplingParams(
    max_new_tokens=9, stop=("\n", "</s>"), stop_token_ids=(3,), stop_regex=(r"\d+",),
    logit_bias={5: -100.0, 7: 1.5}, seed=-(2**63), temperature=0.25, ignore_eos=True,
)  # fmt: skip
VERBS: list[Any] = [
    m.Open(1, ints([1, 2, 2**31 - 1]).tobytes(), "tenant"),
    m.Open(2, b""),
    m.ForkContext(1, 3),
    m.ForkContext(1, 4, 2),
    m.Append(1, ints([7]).tobytes()),
    m.Truncate(1, 0),
    m.Park(1),
    m.Park(1, "search", "key", 2.5, 60.0),
    m.Advance(1, 10, m.Fill()),
    m.Advance(1, 11, m.Generate(SAMPLING, top=2, score_from=0, probe=(4, 5)), 3, True),
    m.Advance(1, 12, m.Generate(SamplingParams(), interval=32)),
    m.Advance(1, 13, m.Score(4, 2, (1,))),
    m.Advance(1, 14, m.Distribution(8, (0,))),
    m.Advance(1, 15, m.Embed("mean")),
    m.Advance(1, 18, m.Fill(), arrived=3.5, hint=CallHint("app", "latency", 40.0, 0.0, 2, 1)),
    m.Close(1),
    m.Control(15, "flush"),
    m.LoadAdapter(16, "poet", "adapters/poet", True),
    m.UnloadAdapter(17, "poet"),
    sm.OpenSpace(1),
    sm.OpenSpace(2, "tenant", "poet", 3, "key", 100),
    sm.AllocPages(1, ints([0, 1, 2]).tobytes()),
    sm.FreePages(1, ints([2]).tobytes()),
    sm.CopyTokens(1, ints([0]).tobytes(), ints([1]).tobytes()),
    sm.ExportPages(1, 4, ints([0]).tobytes(), "docs"),
    sm.ImportPages(2, 4, "docs", 10),
    sm.ReleaseExport(1, 5, "docs"),
    sm.ListExports(1, 6, "do"),
    sm.PrefixPages(1, 7, ints([5, 6]).tobytes(), 20),
    sm.ForwardTokens(1, 8, ints([5]).tobytes()),
    sm.ForwardTokens(
        1, 9, ints([0]).tobytes(), ints([7]).tobytes(), ints([0, 1]).tobytes(),
        ints([2]).tobytes(), b"\x05", SAMPLING, 0.5, ints([5]).tobytes(), b"\xff\xff\xff\xff",
        sm.WHOLE, (1, 2), ints([0, 7]).tobytes(), ((0, 3),), (4,), -1, 8,
    ),
    sm.CloseSpace(1),
]  # fmt: skip
EVENTS: list[Any] = [
    m.Tokens(10, [1, 2], 3, [-0.5, -1.0], [[(1, -0.5)], []], [[-2.0], [-3.0]]),
    m.Tokens(10, []),
    m.PromptChunk(10, 0, [None, -0.25], [None, [(2, -0.25)]], [None, [-9.0]]),
    m.PromptProgress(10, 512, 128),
    m.Done(10, "stop", "\n", 12, RequestStats(5, 3, 4, 7, queue_seconds=0.125)),
    m.Done(11, "stop", 2),
    m.Done(12, "done", top=[(3, -0.1)], probe=[-4.0]),
    m.Done(15, "done", embedding=b"\x00\x00\x80?"),
    m.Done(16, "stop", stats=RequestStats(miss=CacheMiss(3, 8, [5, 6], 2, "evicted", 1.5, 4))),
    m.Failed(13, "capacity", "100 tokens wanted; 50 are there"),
    m.Reply(15, False, "busy", {"running": 3, "used": [1, 2], "nested": {"a": None}}),
    sm.SpaceReply(1, 4, 3, ("docs",)),
    sm.ForwardDone(1, 8, 5, -0.5, ints([5]).tobytes(), b"\x00\x00\x00\xbf", b"\x00\x00\x00\xbf"),
    sm.SpaceFailed(1, 9, "lost", "the pass failed", ints([2]).tobytes()),
    sm.SpaceEnded(1, "overloaded", "older requests needed its pages"),
]


def test_verbs_and_events_round_trip() -> None:
    assert m.decode_verbs(m.encode(VERBS)) == VERBS
    assert m.decode_events(m.encode(EVENTS)) == EVENTS
    assert m.decode_verbs(m.encode([])) == []


@pytest.mark.parametrize(
    "hint",
    [
        CallHint(kind="urgent"),  # type: ignore[arg-type]
        CallHint("p" * 513),
        CallHint(tpot_ms=-1.0),
        CallHint(ttft_ms=float("nan")),
        CallHint(ttft_ms=float("inf")),
    ],
)
def test_a_hint_out_of_bounds_makes_a_frame_malformed(hint: CallHint) -> None:
    with pytest.raises(msgspec.DecodeError):
        m.decode_verbs(m.encode([m.Advance(1, 8, m.Fill(), hint=hint)]))


def test_a_request_without_a_hint_is_as_long_as_before() -> None:
    (fields,) = msgspec.msgpack.decode(m.encode([m.Advance(1, 8, m.Fill())]))
    assert fields == {"type": "advance", "context": 1, "request": 8, "goal": {"type": "fill"}}


def test_the_examples_cover_every_kind() -> None:
    assert {type(v) for v in VERBS} == set(m.Verb.__args__)
    assert {type(e) for e in EVENTS} == set(m.Event.__args__)
    goals = {type(v.goal) for v in VERBS if isinstance(v, m.Advance)}
    assert goals == set(m.Goal.__args__)


def test_messages_at_their_defaults_are_short() -> None:
    assert len(m.encode([m.Close(1)])) < 40
    assert len(m.encode([m.Advance(1, 2, m.Generate(SamplingParams()))])) < 400


MALFORMED = [
    b"",
    b"\xc1",
    m.encode(VERBS)[:-1],
    m.encode(VERBS) + b"\x00",
    msgspec.msgpack.encode({"type": "close", "context": 1}),
    msgspec.msgpack.encode([{"type": "nonsense", "context": 1}]),
    msgspec.msgpack.encode([{"context": 1}]),
    msgspec.msgpack.encode([{"type": "close"}]),
    msgspec.msgpack.encode([{"type": "close", "context": "1"}]),
    msgspec.msgpack.encode([{"type": "open", "context": 1, "tokens": [1, 2]}]),
    msgspec.msgpack.encode([{"type": "advance", "context": 1, "request": 2, "goal": 3}]),
    msgspec.msgpack.encode([{"type": "close", "context": 2**64 - 1}, None]),
    b"\xdd\xff\xff\xff\xff",  # an array of 2**32 - 1 items that are not there
]


@pytest.mark.parametrize("frame", MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_frame_raises_decode_error(frame: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        m.decode_verbs(frame)
    with pytest.raises(msgspec.DecodeError):
        m.decode_events(frame)


def test_a_verb_is_no_event() -> None:
    with pytest.raises(msgspec.DecodeError):
        m.decode_events(m.encode(VERBS))
    with pytest.raises(msgspec.DecodeError):
        m.decode_verbs(m.encode(EVENTS))


def test_deep_nesting_is_refused_without_exhausting_the_stack() -> None:
    inner = b"\x91" * 100_000 + b"\xc0"
    frame = b"\x91\x84\xa4type\xa5reply\xa2id\x01\xa2ok\xc3\xa4data\x81\xa1x" + inner
    with pytest.raises(msgspec.DecodeError):
        m.decode_events(frame)


@given(st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(frame: bytes) -> None:
    for decode in (m.decode_verbs, m.decode_events):
        with suppress(msgspec.DecodeError):
            assert isinstance(decode(frame), list)


def test_text_that_is_no_utf8_is_refused_like_the_rest() -> None:
    frame = m.encode([m.Open(1, b"", "tenant")]).replace(b"tenant", b"\xe1enant")
    with pytest.raises(msgspec.DecodeError):
        m.decode_verbs(frame)


@pytest.mark.slow
@settings(max_examples=1000)
@given(st.integers(0, len(m.encode(VERBS)) - 1), st.integers(1, 255))
def test_a_damaged_byte_never_raises_anything_else(at: int, change: int) -> None:
    frame = bytearray(m.encode(VERBS))
    frame[at] ^= change
    with suppress(msgspec.DecodeError):
        assert isinstance(m.decode_verbs(bytes(frame)), list)
