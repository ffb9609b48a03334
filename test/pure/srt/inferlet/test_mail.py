"""Mail: mailboxes and topics are bounded, and what ends leaves nothing behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.inferlet import mail
from sglang.srt.inferlet.mail import Mailbox, Topics


def hand(reader: int, message: str) -> None:
    raise AssertionError("no reader waits")


def test_a_refused_subscription_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mail, "MOST_TOPICS", 2)
    topics = Topics()
    for topic in "ab":
        topics.subscribe("me", topic, 1, hand)
    for topic in "cd":
        with pytest.raises(ValueError, match="has 2 subscriptions"):
            topics.subscribe("me", topic, 1, hand)
    assert len(topics._boxes) == 2
    topics.leave(1)
    assert not topics._boxes


def test_a_mailbox_holds_so_many_bytes() -> None:
    box: Mailbox[bytes] = Mailbox()
    half = bytes(mail.MOST_UNREAD // 2)
    assert box.put(half) is box.put(half) is None
    with pytest.raises(ValueError, match="receive some first"):
        box.put(b"1")
    assert box.read(1) == [half]
    assert box.put(b"1") is None
    assert box.read(1) == [half]
    assert box.read(1) == [b"1"]
    assert box.put(bytes(mail.MOST_UNREAD + 1)) is None  # one message always fits


def test_a_reader_of_a_topic_that_is_left_is_told() -> None:
    topics = Topics()
    box = topics.subscribe("me", "news", 1, hand)
    assert box.read(7) == box.read(8) == []
    assert topics.unsubscribe("me", "news", 1) == [7, 8]
    assert not topics._boxes


TOPIC = st.sampled_from("abc")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("broadcast"), TOPIC, st.integers(1, 9)),
            st.tuples(st.sampled_from(["read", "unsubscribe"]), TOPIC, st.just(0)),
        ),
        max_size=40,
    )
)
def test_topics_of_a_program_share_a_limit(steps: list[tuple[str, str, int]]) -> None:
    most, mail.MOST_UNREAD = mail.MOST_UNREAD, 12
    try:
        topics, expected = Topics(), {topic: list[str]() for topic in "abc"}
        for step, topic, size in steps:
            box = topics.subscribe("me", topic, 1, hand)
            total = sum(len(one) for messages in expected.values() for one in messages)
            if step == "broadcast":
                topics.broadcast("me", topic, "x" * size)
                if not total or total + size <= 12:
                    expected[topic].append("x" * size)
            elif step == "unsubscribe":
                topics.unsubscribe("me", topic, 1)
                expected[topic] = []
            elif expected[topic]:
                assert box.read(1) == [expected[topic].pop(0)]
        topics.leave(1)
        assert not topics._boxes
        assert not topics._unread
    finally:
        mail.MOST_UNREAD = most
