"""Ends of a group of ranks, without processes."""

from __future__ import annotations

import threading
from queue import SimpleQueue
from typing import Any

from sglang.srt.ranks.layout import RankLayout
from sglang.srt.ranks.rank_group import RankGroup, RemoteNode
from sglang.srt.ranks.rank_messages import NodeBeat, Stop
from sglang.srt.ranks.ranks_executor import Ranks


class Outbox:
    """Takes frames; ``came`` is set by the first."""

    def __init__(self) -> None:
        self.came = threading.Event()

    def send(self, *parts: Any) -> None:
        self.came.set()

    def close(self) -> None: ...


def test_a_load_of_an_adapter_ends_with_the_ranks() -> None:
    """The thread of adapters is joined when the process exits."""
    group, outbox = object.__new__(RankGroup), Outbox()
    group.epoch, group.lost, group.layout, group._own = 7, "", RankLayout(1, 1), False
    group._children, group._nodes, group._sending = [], {}, threading.Lock()
    group._outboxes = {0: outbox}  # type: ignore[dict-item]
    group._closing, group._thread = threading.Event(), threading.Thread(target=lambda: None)
    group._thread.start()
    ranks = object.__new__(Ranks)
    ranks.group, ranks._loading = group, threading.Lock()
    ranks._results, ranks._adapters = SimpleQueue(), SimpleQueue()
    group.takes = ranks._take
    errors = list[str]()

    def load() -> None:
        try:
            ranks.load_adapter(1, "path")
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    assert outbox.came.wait(10)
    ranks.close()
    thread.join(10)
    assert errors == ["the adapter was not loaded: the ranks were stopped"]


class SharedOutbox:
    """A socket that notes whether two threads were in it at once."""

    def __init__(self) -> None:
        self.inside, self.twice, self.sent = 0, False, 0

    def send(self, *parts: Any) -> None:
        self.inside += 1
        threading.Event().wait(0.001)  # lets another thread run
        self.twice |= self.inside > 1
        self.inside -= 1
        self.sent += 1


def test_a_machines_socket_is_used_by_one_thread_at_a_time() -> None:
    """The thread of the group sends beats while another one closes it."""
    group, outbox = object.__new__(RankGroup), SharedOutbox()
    group.epoch, group._sending = 7, threading.Lock()
    group._nodes = {1: RemoteNode(1, outbox, 0.0)}  # type: ignore[arg-type]

    def send(message: Any) -> None:
        for _ in range(20):
            group._tell_nodes(message)

    threads = [threading.Thread(target=send, args=(m,)) for m in (NodeBeat(7, 0), Stop(7))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (outbox.sent, outbox.twice) == (40, False)
