"""Reasons of cache misses, against a record of everything the cache ever held."""

from __future__ import annotations

import random

import pytest
from helpers.mutation import Mutation, become, drop, mutate
from sglang.srt.core.ints import ints
from sglang.srt.core.namespace import BASE, Namespace
from sglang.srt.core.request_stats import CacheMiss
from sglang.srt.memory.lost import MAX_TOKENS, Lost
from sglang.srt.memory.radix import RadixTree
from sglang.srt.memory.store import Store


class Cache:
    """A store that is used by one context after another."""

    def __init__(self, pages: int = 64, page_size: int = 1) -> None:
        self.store, self._number = Store(pages, page_size), 0

    def use(self, tokens: list[int], salt: str = "", drop: str = "", adapter: int = 0) -> CacheMiss:
        """Cache ``tokens``; why they were not there."""
        self._number += 1
        store = self.store
        context = store.open(self._number, ints(tokens), Namespace(salt, adapter))
        found = store.miss(context, len(tokens))
        assert store.acquire(context, len(tokens)) == found.matched
        assert store.grow(context, context.work)
        store.advance(context, context.work, publish=True)
        store.close(context)
        store.check()
        if drop:
            store.flush(drop)
        return found

    def held(self, salt: str = "") -> set[tuple[int, ...]]:
        """Every prefix that the tree holds."""
        found = set()
        for node in self.store.tree.nodes():
            path, step = node.tokens, node.parent
            while step is not None:
                path, step = step.tokens + path, step.parent
            if self.store.tree.namespace(node) == Namespace(salt):
                found |= {tuple(path[: i + 1]) for i in range(len(path))}
        return found


def test_a_new_prompt_was_never_there() -> None:
    cache = Cache()
    assert cache.use([1, 2, 3]) == CacheMiss(0, 3)


def test_what_the_cache_holds_instead() -> None:
    cache = Cache()
    cache.use([1, 2, 3, 4, 5])
    assert cache.use([1, 2, 9, 9]) == CacheMiss(2, 4, cached_next=[3, 4, 5])
    assert cache.use([1, 2, 3, 4, 5]) == CacheMiss(5, 5)
    assert cache.use([1, 2, 7]) == CacheMiss(2, 3, cached_next=[3, 4, 5])  # the one used last


def test_what_was_evicted_and_flushed_is_told() -> None:
    cache = Cache(pages=8)
    cache.use([1, 2, 3, 4, 5, 6])
    cache.use([9, 8, 7, 6])  # takes two pages of the first
    found = cache.use([1, 2, 3, 4, 5, 6])
    assert (found.matched, found.evicted, found.why) == (4, 2, "evicted")
    assert 0 <= found.evicted_ago < 60
    cache.use([1, 2, 3], drop="flushed")
    found = cache.use([1, 2, 3, 4, 9])
    assert (found.matched, found.evicted, found.why) == (0, 4, "flushed")


def test_an_edge_that_shrinks_page_by_page_is_remembered_whole() -> None:
    cache = Cache(pages=40)
    long = list(range(100, 140))
    cache.use(long)
    for i in range(30):
        cache.use([i])
    found = cache.use(long)
    assert found.matched + found.evicted == 40


def test_another_namespace_knows_more() -> None:
    cache = Cache()
    cache.use([1, 2, 3, 4], "a")
    assert cache.use([1, 2, 3], "b") == CacheMiss(0, 3, other=3)
    assert cache.use([1, 2, 3, 5], "b") == CacheMiss(3, 4)


def test_another_adapter_knows_more() -> None:
    cache = Cache()
    cache.use([1, 2, 3, 4], "a", adapter=1)
    assert cache.use([1, 2, 3], "a", adapter=2) == CacheMiss(0, 3, other=3, adapter=3)
    assert cache.use([1, 2], "a") == CacheMiss(0, 2, other=2, adapter=2)
    assert cache.use([1, 2, 3, 4], "b", adapter=1) == CacheMiss(0, 4, other=4)


def test_pages_match_whole() -> None:
    cache = Cache(pages=16, page_size=4)
    cache.use(list(range(12)))
    found = cache.use([0, 1, 2, 3, 4, 5, 99, 98, 97, 96])
    assert found.matched == 4
    assert found.cached_next == [4, 5, 6, 7, 8, 9, 10, 11]


def random_history(seed: int, steps: int = 150) -> tuple[int, int]:
    """Count the misses with a part that had been cached, and those explained in full."""
    rng = random.Random(seed)
    cache = Cache(pages=rng.choice((24, 48)))
    texts = [[rng.randrange(9) for _ in range(rng.randrange(4, 20))] for _ in range(8)]
    ever: set[tuple[int, ...]] = set()
    some = whole = 0
    for _ in range(steps):
        if rng.random() < 0.03:
            cache.store.flush()
        text = rng.choice(texts)
        tokens = text[: rng.randrange(1, len(text) + 1)]
        tokens += [rng.randrange(9) for _ in range(rng.randrange(4))]
        held = cache.held()
        found = cache.use(tokens)
        prefixes = [tuple(tokens[:i]) for i in range(1, len(tokens) + 1)]
        assert found.matched == max((len(p) for p in prefixes if p in held), default=0)
        past = max((len(p) for p in prefixes if p in ever), default=0)
        assert found.matched + found.evicted <= max(past, found.matched)
        if past > found.matched:
            some += 1
            whole += found.matched + found.evicted == past
        ever.update(prefixes)
    return some, whole


@pytest.mark.slow
def test_a_miss_never_claims_what_was_not_there() -> None:
    counts = [random_history(seed) for seed in range(40)]
    some, whole = (sum(each) for each in zip(*counts))
    assert some > 300
    assert whole > 0.8 * some, f"{whole} of {some}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutation",
    [
        Mutation(RadixTree, "_split", "A.sum", become("A.mark")),
        Mutation(RadixTree, "_split", "A.depth + _", become("A.depth")),
        Mutation(RadixTree, "cut", "_._lose(...)", drop),
    ],
    ids=lambda mutation: mutation.pattern,
)
def test_the_histories_catch(monkeypatch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    mutate(monkeypatch, mutation)
    with pytest.raises(AssertionError):
        test_a_miss_never_claims_what_was_not_there()


def test_what_is_remembered_is_bounded() -> None:
    lost = Lost()
    for i in range(5000):
        lost.note((BASE, 0, 0, i), i, ints([i] * 1000), "evicted")
    assert lost._tokens <= MAX_TOKENS
    assert len(lost._edges) * 1000 == lost._tokens
    lost.note((BASE, 0, 0, -1), -1, ints(range(MAX_TOKENS + 1)), "evicted")
    assert lost._tokens <= MAX_TOKENS
    assert lost.follow(BASE, ints([4999] * 7), 7, 0, 0)[0] == 7
    assert lost.follow(BASE, ints([1] * 7), 7, 0, 0)[0] == 0  # too long ago
