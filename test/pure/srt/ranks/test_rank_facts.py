"""Facts that ranks must share, and frames that are none of theirs."""

from __future__ import annotations

import pytest
from sglang.srt.ranks.rank_group import check_equal, differing
from sglang.srt.ranks.rank_messages import Hello, NodeBeat, Ready, decode_message, encode_message

FACTS = {"version": "1", "weights": "ab", "dtype": "torch.float32", "layout": "[2, 1]"}


def hello(rank: int, **changes: str) -> Hello:
    return Hello(1, rank, "a", "b", "c", "", {**FACTS, **changes})


@pytest.mark.parametrize("name", FACTS)
def test_a_rank_that_differs_is_named(name: str) -> None:
    check_equal([hello(0), hello(1), hello(2)])
    with pytest.raises(ValueError, match=f"{name} is .* on rank 0 and other on rank 2; use one"):
        check_equal([hello(0), hello(1), hello(2, **{name: "other"})])


def test_a_fact_that_is_missing_differs() -> None:
    assert not differing(FACTS, dict(FACTS), "one", "another")
    assert "dtype is torch.float32 on one and None on another" in differing(
        FACTS, {k: v for k, v in FACTS.items() if k != "dtype"}, "one", "another"
    )


DEEP = encode_message(Ready(7, 0, {"": 1}))[:-1] + b"\x91" * 100_000 + b"\xc0"


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", b"\x80", encode_message(NodeBeat(1, 2))[:-1], DEEP]
)
def test_frames_that_are_no_messages_are_dropped(frame: bytes) -> None:
    from queue import SimpleQueue

    from sglang.srt.ranks.rank_group import RankGroup

    with pytest.raises(ValueError):
        decode_message(frame)
    group = object.__new__(RankGroup)
    group.epoch, group.messages, group.takes = 7, SimpleQueue(), lambda message: False
    group._receive(frame)
    group._receive(encode_message(hello(0)))  # epoch 1, not 7
    assert group.messages.empty()
