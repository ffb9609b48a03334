"""The radix tree against a brute-force model: a dictionary of every cached page by its prefix."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from helpers.lru import evicts_least_recently_used
from helpers.mutation import Mutation, become, constant, drop, mutate
from sglang.srt.core.ints import common_prefix, ints
from sglang.srt.core.namespace import BASE, Namespace
from sglang.srt.memory.pages import PagePool
from sglang.srt.memory.radix import RadixTree
from sglang.srt.memory.radix_node import RadixNode

SIZE = 48  # pages


@dataclass
class Cached:
    """A page of the model."""

    page: int
    locks: int = 0
    used: int = 0


class Model:
    """Every cached page by (namespace, the tokens up to its end). No tree, no clever accounting."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.cached: dict[tuple[str, tuple[int, ...]], Cached] = {}
        self.clock = 0

    def path(self, space: str, tokens: list[int], limit: int) -> list[Cached]:
        out: list[Cached] = []
        size = self.page_size
        while (len(out) + 1) * size <= min(limit, len(tokens)):
            page = self.cached.get((space, tuple(tokens[: (len(out) + 1) * size])))
            if page is None:
                break
            out.append(page)
        return out

    def tick(self) -> int:
        self.clock += 1
        return self.clock

    def evictable(self) -> int:
        return sum(not page.locks for page in self.cached.values())

    def evict(self, count: int) -> set[int]:
        """Page by page: the least recently used of those that no longer prefix hangs on."""
        gone: set[int] = set()
        while len(gone) < count:
            inner = {(s, key[: -self.page_size]) for s, key in self.cached}
            leaves = [
                (page.used, key)
                for key, page in self.cached.items()
                if not page.locks and key not in inner
            ]
            if not leaves:
                break
            gone.add(self.cached.pop(min(leaves)[1]).page)
        return gone


@dataclass
class Handle:
    """A lock: its node, and the tokens and pages of the path."""

    node: RadixNode
    space: str
    tokens: list[int]
    pages: list[int]


class Machine:
    """Every public operation, in a random order, on tree and model at once."""

    def __init__(self, seed: int) -> None:
        r = self.random = random.Random(seed)
        self.size = page_size = r.choice([1, 2, 4])
        self.stems = [r.choices(range(3), k=8 * page_size) for _ in range(2)]
        self.pool = PagePool(SIZE)
        self.tree = RadixTree(self.pool, page_size)
        self.model = Model(page_size)
        self.handles: list[Handle] = []

    def run(self, steps: int) -> None:
        r = self.random
        for _ in range(steps):
            kind = r.choices(
                ["match", "lock", "deepen", "publish", "unlock", "evict", "clear"],
                [3, 4, 1, 5, 3, 2, 0.1],
            )[0]
            space, limit = r.choice(["", "", "salt"]), r.randint(0, 14 * self.size)
            if kind == "match":
                self.match(space, self.tokens(), limit)
            elif kind == "lock" and len(self.handles) < 6:
                self.lock(space, self.tokens(), limit)
            elif kind in ("evict", "clear"):
                getattr(self, kind)()
            elif self.handles and kind != "lock":
                getattr(self, kind)(r.choice(self.handles), limit)
            self.the_books_agree()

    def tokens(self) -> list[int]:
        r = self.random
        stem = r.choice(self.stems)
        return stem[: r.randint(0, len(stem))] + r.choices(range(3), k=r.randint(1, 4 * self.size))

    def match(self, space: str, tokens: list[int], limit: int) -> None:
        before = self.tree.version
        found, pins, path = self.tree.match(ints(tokens), limit, Namespace(space))
        want = self.model.path(space, tokens, limit)
        assert found == len(want) * self.size
        assert pins == sum(not page.locks for page in want)
        assert bool(path) == bool(want)
        assert self.tree.version == before

    def lock(self, space: str, tokens: list[int], limit: int) -> None:
        node, pages = self.tree.lock(ints(tokens), limit, Namespace(space))
        want = self.model.path(space, tokens, limit)
        clock = self.model.tick()
        for page in want:
            page.locks += 1
            page.used = clock
        assert list(pages) == [page.page for page in want]
        self.handles.append(Handle(node, space, tokens, list(pages)))

    def deepen(self, handle: Handle, limit: int) -> None:
        start = len(handle.pages) * self.size
        handle.node, gained = self.tree.deepen(handle.node, ints(handle.tokens), start, limit)
        want = self.model.path(handle.space, handle.tokens, limit)[len(handle.pages) :]
        clock = self.model.tick()
        for page in want:
            page.locks += 1
            page.used = clock
        assert list(gained) == [page.page for page in want]
        handle.pages += gained

    def publish(self, handle: Handle, limit: int) -> None:
        have = len(handle.pages)
        count = min(limit, len(handle.tokens) // self.size - have, self.pool.free)
        if count <= 0:
            return
        start, end = have * self.size, (have + count) * self.size
        kept = self.model.path(handle.space, handle.tokens, end)[have:]
        assert self.tree.continues(handle.node, ints(handle.tokens), start) == bool(
            self.model.path(handle.space, handle.tokens, 1 << 30)[have:]
        )
        own = self.pool.take(count)
        handle.node, pages, spare = self.tree.publish(
            handle.node, ints(handle.tokens), start, own[:]
        )
        self.pool.give(spare)
        assert list(spare) == list(own[: len(kept)])
        assert list(pages) == [page.page for page in kept] + list(own[len(kept) :])
        clock = self.model.tick()
        for page in kept:
            page.locks += 1
            page.used = clock
        clock = self.model.tick()
        for i in range(len(kept), count):
            key = (handle.space, tuple(handle.tokens[: start + (i + 1) * self.size]))
            self.model.cached[key] = Cached(own[i], 1, clock)
        handle.pages += pages

    def unlock(self, handle: Handle, limit: int) -> None:
        self.handles.remove(handle)
        path = self.model.path(handle.space, handle.tokens, len(handle.pages) * self.size)
        gain = sum(page.locks == 1 for page in path)
        assert self.tree.exclusive(handle.node) == gain
        before = self.tree.evictable
        self.tree.unlock(handle.node)
        assert self.tree.evictable == before + gain
        clock = self.model.tick()
        for page in path:
            page.locks -= 1
            page.used = clock

    def evict(self) -> None:
        count = self.random.randint(0, 8)
        before, able = set(self.tree.check()), self.model.evictable()
        freed = self.tree.evict(count)
        assert freed == min(count, able)
        evicted = before.difference(self.tree.check())
        assert evicted == self.model.evict(count), "not the least recently used"

    def clear(self) -> None:
        assert self.tree.clear() == self.model.evictable()
        self.model.evict(SIZE)

    def the_books_agree(self) -> None:
        pages = self.tree.check()
        self.pool.check(pages)
        assert set(pages) == {page.page for page in self.model.cached.values()}
        assert self.tree.evictable == self.model.evictable()
        assert self.tree.protected == len(pages) - self.tree.evictable
        for handle in self.handles:
            path = self.model.path(handle.space, handle.tokens, len(handle.pages) * self.size)
            assert [page.page for page in path] == handle.pages, "a locked page has moved"


def against_the_model(seeds: int) -> None:
    """Raises AssertionError, naming the seed, where tree and model differ."""
    for seed in range(seeds):
        try:
            Machine(seed).run(60)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error


@pytest.mark.slow
def test_the_tree_is_what_the_model_is() -> None:
    against_the_model(300)


MUTATIONS = {
    "the most recently used goes first": [
        Mutation(RadixTree, "_offer", "_.heappush(_, (X, ...))", become("-X")),
        Mutation(RadixTree, "_top", "_.used != X", become("-X")),
    ],
    "releasing is no use": [
        Mutation(RadixTree, "unlock", "_.used, _.at = _", drop),
    ],
    "pins of shared pages": [
        Mutation(RadixTree, "match", "A.locks == 0", become("A.locks <= 1")),
    ],
    "the limit is ignored": [
        Mutation(RadixTree, "_child", "min(common_prefix(...), X)", constant(1 << 30)),
    ],
    "half pages match": [
        Mutation(RadixTree, "_child", "A - A % _", become("A")),
    ],
    "a whole leaf goes": [
        Mutation(RadixTree, "cut", "min(A, _)", become("A")),
    ],
    "a parent is not offered": [Mutation(RadixTree, "cut", "_._offer(parent)", drop)],
    "spare pages are forgotten": [
        Mutation(RadixTree, "publish", "_[:X], _", constant(0)),
    ],
    "exclusive counts shared pages": [
        Mutation(RadixTree, "exclusive", "A.locks == 1", become("A.locks <= 2")),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_the_model_catches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, *MUTATIONS[name])
    with pytest.raises(AssertionError, match="seed"):
        against_the_model(100)


def cache(tree: RadixTree, tokens: list[int], space: str = "") -> None:
    """Compute and release a sequence of whole pages."""
    keys = ints(tokens)
    node, pages = tree.lock(keys, len(keys), Namespace(space))
    count = len(keys) // tree.page_size - len(pages)
    start = len(pages) * tree.page_size
    tree.unlock(tree.publish(node, keys, start, tree.pool.take(count))[0])


def test_a_namespace_meets_only_its_own() -> None:
    tree = RadixTree(PagePool(8), 1)
    cache(tree, [1, 2, 3], "a")
    assert tree.match(ints([1, 2, 3]), 3, Namespace("a"))[0] == 3
    assert tree.match(ints([1, 2, 3]), 3, Namespace("b"))[0] == 0
    assert tree.lock(ints([1, 2, 3]), 3, Namespace("b"))[1] == ints()


def test_an_empty_namespace_is_forgotten() -> None:
    tree = RadixTree(PagePool(8), 1)
    for number in range(1000):
        tree.unlock(tree.lock(ints([1]), 1, Namespace(f"user {number}"))[0])
        cache(tree, [1], f"user {number}")
        tree.clear()
    assert not tree._roots


def test_least_recently_used_leaves_go_first() -> None:
    assert evicts_least_recently_used()


def test_a_long_leaf_loses_only_its_tail() -> None:
    tree = RadixTree(PagePool(10), 2)
    cache(tree, list(range(20)))
    assert tree.evict(3) == 3
    assert tree.match(ints(range(20)), 20, BASE)[0] == 14


def test_the_eviction_heap_stays_small() -> None:
    """A leaf locked and released over and over leaves old entries behind; they are swept."""
    tree = RadixTree(PagePool(16), 1)
    cache(tree, [1, 2, 3, 4])
    for _ in range(5000):
        tree.unlock(tree.lock(ints([1, 2, 3, 4]), 4, BASE)[0])
    assert len(tree._heap) < 200
    assert tree.evict(16) == 4


@pytest.mark.parametrize("seed", range(20))
def test_common_prefix(seed: int) -> None:
    r = random.Random(seed)
    for _ in range(50):
        a = ints(r.choices(range(3), k=r.choice([0, 1, 15, 16, 17, 300, 5000])))
        b = a[:]
        start = r.randint(0, len(a))
        if b and r.random() < 0.8:
            b[r.randrange(len(b))] += 1
        lead = ints(r.choices(range(3), k=r.randint(0, 5)))
        want = 0
        while start + want < len(a) and a[start + want] == b[start + want]:
            want += 1
        assert common_prefix(a, lead + b[start:], start, len(lead)) == want


def test_the_page_pool() -> None:
    pool = PagePool(3)
    taken = pool.take(2)
    with pytest.raises(MemoryError, match="2 pages wanted, 1 free of 3"):
        pool.take(2)
    assert pool.free == 1, "a refusal takes nothing"
    pool.give(taken)
    assert sorted(pool.take(3)) == [0, 1, 2]
    assert pool.take(0) == ints()
    pool.give(ints([1, 1]))
    with pytest.raises(AssertionError, match=r"pages \[2\] are lost, pages \[1\] have two owners"):
        pool.check([0])
    with pytest.raises(ValueError, match="at least 1"):
        PagePool(0)


def test_compaction_keeps_every_leaf() -> None:
    """Ten leaves that are used again and again: the heap stays short, and all can be evicted."""
    pool = PagePool(20)
    tree = RadixTree(pool, 1)
    keys = [ints([number, number]) for number in range(10)]
    for key in keys:
        node, _ = tree.lock(key, 2, BASE)
        tree.unlock(tree.publish(node, key, 0, pool.take(2))[0])
    longest = 0
    for turn in range(1000):
        tree.unlock(tree.lock(keys[turn % 10], 2, BASE)[0])
        longest = max(longest, len(tree._heap))
        tree.check()
    assert tree.heap_spare + tree.heap_share * 20 == longest < 1000
    assert [tree.evict(2) for _ in keys] == [2] * 10
    assert pool.free == 20


def test_a_heap_that_is_dropped_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    mutate(monkeypatch, Mutation(RadixTree, "_offer", "[_ for _ in _ if _]", become("[]")))
    with pytest.raises(AssertionError, match="a leaf that eviction does not find"):
        test_compaction_keeps_every_leaf()
