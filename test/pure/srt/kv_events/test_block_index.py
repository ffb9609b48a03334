"""Events of a radix tree in random histories: what a subscriber knows is what the tree holds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue

from helpers.kv_subscriber import Subscriber
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.namespace import BASE, Namespace
from sglang.srt.kv_events.block_index import BlockIndex, BlockScope
from sglang.srt.kv_events.event_wire import AllBlocksCleared, BlockRemoved, BlockStored, Events
from sglang.srt.kv_events.recorder import RecordedPass, TreeRecorder
from sglang.srt.memory.pages import PagePool
from sglang.srt.memory.radix import RadixTree
from sglang.srt.memory.radix_node import RadixNode
from sglang.srt.memory.tree_retelling import retell

SIZE = 64  # pages
SPACES = (BASE, Namespace("salt"), Namespace("", 7))
NAMES = {0: "", 7: "adapter"}


class History:
    """A tree with a recorder, an index behind it and a subscriber behind that."""

    def __init__(self, page_size: int, block_size: int, most: int = 100) -> None:
        self.pool, self.size = PagePool(SIZE), page_size
        self.tree = RadixTree(self.pool, page_size)
        self.queue: SimpleQueue[RecordedPass | None] = SimpleQueue()
        self.recorder = TreeRecorder(
            partial(retell, self.tree), self.queue, most, NAMES.__getitem__
        )
        self.tree.watcher = self.recorder
        self.index = BlockIndex(block_size)
        self.subscriber = Subscriber(block_size)
        self.held: list[tuple[RadixNode, Ints, int]] = []  # node, tokens, pages

    def publish(self, space: Namespace, tokens: list[int], keep: bool) -> None:
        """A context computes its prompt and, unless it is kept, ends."""
        node, pages = self.tree.lock(ints(tokens), len(tokens), space)
        count = len(tokens) // self.size - len(pages)
        if count > self.pool.free:
            self.tree.evict(count - self.pool.free)
        own = self.pool.take(min(count, self.pool.free))
        start = len(pages) * self.size
        node, taken, spare = self.tree.publish(node, ints(tokens), start, own)
        self.pool.give(spare)
        if keep and len(self.held) < 4:
            self.held.append((node, ints(tokens), len(pages) + len(taken)))
        else:
            self.tree.unlock(node)

    def end(self, which: int) -> None:
        if self.held:
            self.tree.unlock(self.held.pop(which % len(self.held))[0])

    def read(self) -> list[Events]:
        """The events of every pass that waits."""
        self.recorder.flush()
        found: list[Events] = []
        while not self.queue.empty():
            recorded = self.queue.get()
            assert recorded is not None
            found.append(self.index.events(recorded.changes))
        for events in found:
            self.subscriber.take(events)
        return found

    def paths(self) -> set[tuple[str, str, tuple[int, ...]]]:
        """All tokens up to the end of each block that the tree holds, by salt and adapter."""
        found = set()
        for node in self.tree.nodes():
            tokens, _ = self.tree.path(node)
            space = self.tree.namespace(node)
            scope = BlockScope(space.salt, space.adapter, NAMES[space.adapter])
            for end in range(node.depth + 1, len(tokens) + 1):
                if end % self.index.size == 0:
                    found.add((scope.mark, scope.name, tuple(tokens[:end])))
        return found


TOKENS = st.lists(st.integers(0, 1), min_size=0, max_size=40)
PUBLISH = st.tuples(st.just("publish"), st.sampled_from(SPACES), TOKENS, st.booleans())
OTHER = st.tuples(st.sampled_from(["evict", "end", "read", "clear", "drop"]), st.integers(1, 20))
STEPS = st.lists(PUBLISH | OTHER, max_size=40)
PAGES = st.sampled_from([(1, 4), (2, 4), (4, 4), (1, 3), (2, 6)])


def play(history: History, steps: list[tuple[object, ...]]) -> None:
    for step in steps:
        if step[0] == "publish":
            history.publish(*step[1:])  # type: ignore[arg-type]
            continue
        kind, number = step
        assert isinstance(number, int)
        if kind == "evict":
            history.tree.evict(number)
        elif kind == "end":
            history.end(number)
        elif kind == "clear":
            history.tree.clear()
        elif kind == "drop":
            for space in list(history.tree.namespaces):
                root = history.tree.root(space)
                if root is not None and not root.locks:
                    history.tree.drop(space)
                    break
        else:
            history.read()
            assert history.subscriber.paths() == history.paths()


@settings(max_examples=150, deadline=None)
@given(PAGES, STEPS)
def test_a_subscriber_knows_what_the_tree_holds(
    sizes: tuple[int, int], steps: list[tuple[object, ...]]
) -> None:
    history = History(*sizes)
    play(history, steps)
    history.read()
    assert history.subscriber.paths() == history.paths()
    history.tree.check()


@settings(max_examples=100, deadline=None)
@given(PAGES, STEPS, STEPS)
def test_dropped_passes_are_followed_by_the_whole_tree(
    sizes: tuple[int, int], first: list[tuple[object, ...]], then: list[tuple[object, ...]]
) -> None:
    history = History(*sizes, most=1)
    history.recorder.flush()  # fills the queue
    play(history, [step for step in first if step[0] != "read"])
    before = history.recorder.dropped
    history.recorder.flush()
    assert history.recorder.dropped >= before
    history.queue.get()
    history.index, gap = BlockIndex(sizes[1]), history.recorder.dropped
    play(history, [step for step in then if step[0] != "read"])
    history.recorder.flush()
    if not history.queue.empty():
        recorded = history.queue.get()
        assert recorded is not None
        assert recorded.dropped == gap
        history.subscriber.take(history.index.events(recorded.changes))
    history.read()
    assert history.subscriber.paths() == history.paths()


def emitted(history: History) -> Iterator[BlockStored | BlockRemoved | AllBlocksCleared]:
    for events in history.read():
        yield from events


def test_a_first_batch_clears_what_an_engine_before_it_told() -> None:
    assert list(emitted(History(1, 4))) == [AllBlocksCleared()]


def test_a_block_that_spans_edges_is_stored_once() -> None:
    history = History(1, 4)
    history.publish(BASE, [1, 2, 3, 4, 5, 6, 7], False)
    list(emitted(history))
    history.publish(BASE, [1, 2, 3, 4, 5, 9, 9, 9], False)  # splits the edge inside a block
    stored = list(emitted(history))
    assert [(event.token_ids, event.block_size) for event in stored] == [([5, 9, 9, 9], 4)]  # type: ignore[union-attr]
    history.tree.evict(2)  # the tail of the older edge: no whole block ends in it
    assert list(emitted(history)) == []
    history.tree.evict(1)
    removed = list(emitted(history))
    assert removed == [BlockRemoved(stored[0].block_hashes, "GPU")]  # type: ignore[union-attr]


def test_equal_tokens_of_other_scopes_have_other_hashes() -> None:
    history = History(1, 4)
    for space in SPACES:
        history.publish(space, [1, 2, 3, 4], False)
    stored = [event for event in emitted(history) if isinstance(event, BlockStored)]
    assert len({event.block_hashes[0] for event in stored}) == 3
    assert [(event.lora_id, event.lora_name) for event in stored] == [
        (None, None), (None, None), (7, "adapter"),
    ]  # fmt: skip
    [[mark]] = [event.extra_keys[0] for event in stored if event.extra_keys]  # type: ignore[misc]
    assert "salt" not in mark


def test_marks_of_media_are_above_every_token_id() -> None:
    history = History(1, 2)
    history.publish(BASE, [1, -(1 << 31) | 5], False)
    [event] = [event for event in emitted(history) if isinstance(event, BlockStored)]
    assert event.token_ids == [1, (1 << 31) + 5]


def test_a_flush_is_one_event() -> None:
    history = History(1, 4)
    for first in range(5):
        history.publish(BASE, [first] * 8, False)
    list(emitted(history))
    history.tree.clear()
    assert list(emitted(history)) == [AllBlocksCleared()]
