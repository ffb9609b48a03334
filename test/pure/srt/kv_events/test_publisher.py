"""The publisher on real sockets: batches in order, gaps, replays; settings that are refused."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import zmq
from helpers.kv_subscriber import GapFound, Subscriber, replayed
from sglang.srt.config import Config
from sglang.srt.config.kv_events_section import KvEventsConfig, KvEventsSettings
from sglang.srt.core.ints import ints
from sglang.srt.core.namespace import BASE
from sglang.srt.kv_events.publisher import EventPublisher, block_size_of
from sglang.srt.memory.pages import PagePool
from sglang.srt.memory.radix import RadixTree
from sglang.srt.memory.tree_retelling import retell


def endpoints(directory: Any) -> dict[str, Any]:
    return {
        "endpoint": f"ipc://{directory}/events", "replay_endpoint": f"ipc://{directory}/replay",
    }  # fmt: skip


@contextmanager
def published(
    settings: KvEventsSettings,
) -> Iterator[tuple[RadixTree, Callable[[int], None], EventPublisher]]:
    """A tree of pages of one token, ``add`` (a prompt of four tokens, one pass), the publisher."""
    tree = RadixTree(PagePool(64), 1)
    publisher = EventPublisher(settings)
    recorder = publisher.follow(partial(retell, tree), 1, lambda number: "")
    tree.watcher = recorder

    def add(first: int) -> None:
        node, _ = tree.lock(ints(), 0, BASE)
        node, _, _ = tree.publish(node, ints([first] * 4), 0, tree.pool.take(4))
        tree.unlock(node)
        recorder.flush()

    try:
        yield tree, add, publisher
    finally:
        publisher.close()
        publisher.close()


def until(endpoint: str, last: int) -> list[tuple[int, bytes]]:
    """All kept batches, once the one of number ``last`` is among them."""
    deadline = time.monotonic() + 60
    while True:
        found = replayed(endpoint, 0)
        if found and found[-1][0] >= last:
            return found
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_replay_brings_all_that_is_kept(tmp_path: Any) -> None:
    where = endpoints(tmp_path)
    settings = KvEventsSettings(publisher="zmq", block_size=4, buffer_steps=8, **where)
    with published(settings) as (_, add, _):
        for first in range(11):
            add(first)
        kept = until(where["replay_endpoint"], 11)
        assert [number for number, _ in kept] == list(range(4, 12))
        later = replayed(where["replay_endpoint"], 10)
        assert later == kept[-2:]
        assert replayed(where["replay_endpoint"], 12) == []


def test_a_gap_is_filled_from_the_replay(tmp_path: Any) -> None:
    where = endpoints(tmp_path)
    settings = KvEventsSettings(publisher="zmq", block_size=4, topic="kv", **where)
    with published(settings) as (tree, add, _), zmq.Context() as context:
        add(0)  # before there is a subscriber
        until(where["replay_endpoint"], 0)
        with context.socket(zmq.SUB) as socket:
            socket.linger, socket.rcvtimeo = 0, 20_000
            socket.connect(where["endpoint"])
            socket.subscribe(b"kv")
            deadline, first = time.monotonic() + 60, 1
            while not socket.poll(20):  # the subscription has not arrived yet
                assert time.monotonic() < deadline
                add(first)
                first += 1
            topic, number, payload = socket.recv_multipart()
            assert topic == b"kv"
            subscriber = Subscriber(4)
            with pytest.raises(GapFound):
                subscriber.receive(int.from_bytes(number, "big"), payload)
            for each in replayed(where["replay_endpoint"], subscriber.next):
                subscriber.receive(*each)
            tree.clear()
            add(100)
            while len(subscriber.known) != 1:
                _, number, payload = socket.recv_multipart()
                subscriber.receive(int.from_bytes(number, "big"), payload)
            assert subscriber.paths() == {("", "", (100,) * 4)}


def test_a_wrong_replay_request_stops_nothing(tmp_path: Any) -> None:
    where = endpoints(tmp_path)
    settings = KvEventsSettings(publisher="zmq", block_size=4, **where)
    with (
        published(settings) as (_, add, _), zmq.Context() as context,
        context.socket(zmq.DEALER) as socket,
    ):  # fmt: skip
        socket.linger = 0
        socket.connect(where["replay_endpoint"])
        for frames in ([b"x"], [b"", b"123"], [b"", b"", b"12345678"]):
            socket.send_multipart(frames)
        add(1)
        assert [number for number, _ in until(where["replay_endpoint"], 1)] == [0, 1]


def test_a_port_in_use_is_named(tmp_path: Any) -> None:
    with zmq.Context() as context, context.socket(zmq.PUB) as taken:
        port = taken.bind_to_random_port("tcp://127.0.0.1")
        endpoint = f"tcp://*:{port}"
        with pytest.raises(OSError, match=r"replay_endpoint .* cannot be bound: Address already"):
            EventPublisher(
                KvEventsSettings(endpoint=f"ipc://{tmp_path}/e", replay_endpoint=endpoint)
            )
        with pytest.raises(OSError, match=r"endpoint 'tcp://\*.*choose another address or port"):
            EventPublisher(KvEventsSettings(endpoint=endpoint))


REFUSED = [
    ("{", "is '{', which is no JSON"),
    ("[1]", "must be an object with keys of"),
    ({"end_point": "x"}, "has the key 'end_point'; its keys are"),
    ({"publisher": "kafka"}, "publisher is 'kafka'; use 'zmq' or 'null'"),
    ({"publisher": 3}, "publisher is 3; it must be a text"),
    ({"enable_kv_cache_events": "yes"}, "is 'yes'; it must be true or false"),
    ({"hwm": -1}, "hwm is -1; it must be from 0 to"),
    ({"hwm": True}, "hwm is True; it must be a whole number"),
    ({"buffer_steps": 1e9}, "buffer_steps is 1000000000.0; it must be a whole number"),
    ({"max_queue_size": 0}, "max_queue_size is 0; it must be from 1 to"),
    ({"block_size": 100_000}, "block_size is 100000; it must be from 0 to 65536"),
    ({"endpoint": "5557"}, "endpoint is '5557'; it must begin with tcp:// or ipc://"),
    ({"replay_endpoint": "tcp://*:5557"}, "are both 'tcp://*:5557'; give each a port"),
]


@pytest.mark.parametrize(("value", "told"), REFUSED)
def test_a_wrong_setting_names_value_limit_and_fix(value: object, told: str) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    with pytest.raises(ValueError, match="--kv-events-config") as raised:
        Config.of(kv_events_config=text)
    assert told in str(raised.value)


@pytest.mark.parametrize(
    ("value", "enabled"),
    [("", False), ({"publisher": "zmq"}, True), ({"publisher": "null"}, False), ({}, False),
     ({"enable_kv_cache_events": True}, True), ({"enable_kv_cache_events": False}, False),
     ({"enable_kv_cache_events": False, "publisher": "zmq"}, False),
     ({"enable_kv_cache_events": True, "publisher": "null"}, False)],
)  # fmt: skip
def test_events_are_published_where_the_setting_says(value: object, enabled: bool) -> None:
    text = value if isinstance(value, str) else json.dumps(value)
    assert KvEventsConfig(text).settings.enabled == enabled


def test_blocks_are_whole_pages() -> None:
    sizes = [block_size_of(KvEventsSettings(), page) for page in (1, 4, 6, 16, 64)]
    assert sizes == [16, 16, 18, 16, 64]
    assert block_size_of(KvEventsSettings(block_size=32), 16) == 32
    with pytest.raises(ValueError, match="block_size is 8; it must be a multiple of the page size"):
        block_size_of(KvEventsSettings(block_size=8), 16)
