"""Hooks on what a request may take from the cache.

The planner asks the store twice: what is there (``match``), to order and to count, and for it
(``acquire``), when a request is admitted and at each later chunk of its prompt. Both take a limit.
A hook gives them a smaller one, a function of the cache of that moment; so the plan and what comes
of it agree, and the store's books need no rule of their own. What a request computes though the
tree has it is its own (``store.advance``) and takes memory like anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from sglang.srt.core.context import Context
from sglang.srt.core.ints import Ints
from sglang.srt.core.namespace import Namespace
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.planned_pass import PlannedPass
from sglang.srt.memory.lost import checksum
from sglang.srt.memory.radix import Choose, Save
from sglang.srt.memory.radix_node import RadixNode
from sglang.srt.memory.store import Store

from benchmark.harness.hooks.patch import patched

Reach: TypeAlias = Callable[[Context, int], int]
"""From a context and the most it may take of the cache: the most that it gets."""


@contextmanager
def _reaching(store: Store, reach: Reach) -> Iterator[None]:
    match, miss, acquire = store.match, store.miss, store.acquire
    with patched(
        store,
        match=lambda context, limit: match(context, reach(context, limit)),
        miss=lambda context, limit: miss(context, reach(context, limit)),
        acquire=lambda context, limit: acquire(context, reach(context, limit)),
    ):
        yield


@contextmanager
def part_of_hits(engine: EngineCore, rate: float) -> Iterator[None]:
    """Use only the first ``rate`` of the tokens that match, rounded down to whole pages; also where
    a request matches, between two chunks of its prompt, tokens that others have computed meanwhile.

    The request computes the rest on pages of its own. When the next pass is planned they are
    exchanged for the tree's, and the tokens after them are published. So the tree grows as ever,
    except requests of one pass: tokens that one computes after a hit that was cut match no other.

    Raises ValueError for a rate outside [0, 1].
    """
    if not 0 <= rate <= 1:
        raise ValueError(f"the rate of hits is {rate}; give a number from 0 to 1")
    store, planner, plan = engine.store, engine.planner, engine.planner.plan

    def reach(context: Context, limit: int) -> int:
        held = store.tree.match(context.key, limit, context.namespace)[0]
        return int(held * rate + 1e-9)  # 0.29 * 100 is 29

    def planned(under_way: PlannedPass | None = None) -> PlannedPass:
        for request in planner.running.values():
            store._publish(request.context, min(request.context.saved, request.spec.prompt))
        return plan(under_way)

    with _reaching(store, reach), patched(planner, plan=planned):
        yield


@contextmanager
def whole_sequences(engine: EngineCore) -> Iterator[None]:
    """No tree: a table of whole sequences.

    A request that ends makes two entries: its prompt, and its prompt and output (without the last
    generated token, whose KV was not computed). A request that ends before its prompt is computed,
    because it is retracted or aborted, makes one entry of the computed part. A prompt uses the
    longest entry that it is equal to or continues. An entry that only shares a beginning with it
    gives nothing; nor does one that has lost a page, be it the last. Running requests share nothing
    but the entry that they continue.

    The KV of entries is still kept by the radix tree: those that begin alike hold that beginning
    once, and the tail of one goes before what others share with it. A real table would hold it
    twice and evict entries as wholes. So this table has more room than a real one: what the tree is
    found to bring is the least that it brings.
    """
    store = engine.store
    table = _Table(store)
    with (
        patched(store, advance=table.advance, release=table.release),
        _cutting(store, table),
        _reaching(store, table.reach),
    ):
        yield


class _Table:
    """Ends of entries in the tree: by namespace and length, the checksums of their tokens."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._advance, self._release = store.advance, store.release
        self._ends: dict[Namespace, dict[int, set[int]]] = {}
        self._prompts: dict[int, int] = {}  # by context: length of its prompt, once it is planned

    def advance(self, context: Context, count: int, publish: bool) -> None:
        self._advance(context, count, publish)
        if publish:
            self._prompts[context.id] = context.saved

    def release(self, context: Context, keep: bool = True) -> None:
        key, ends = context.key, {context.saved, self._prompts.pop(context.id, 0)}
        self._release(context, keep)
        if keep:
            for end in ends:
                self._add(key, min(end, len(key)), context.namespace)

    def _add(self, key: Ints, length: int, namespace: Namespace) -> None:
        """The first ``length`` tokens, as far as they fill pages, are an entry."""
        length -= length % self._store.page_size
        ends = self._ends.setdefault(namespace, {}).setdefault(length, set())
        mark = checksum(key[:length])
        if length and mark not in ends:
            ends.add(mark)
            self._store.tree.version += 1  # matches may have changed

    def remove(self, namespace: Namespace, depth: int, mark: int, tokens: Ints, kept: int) -> None:
        """An edge of ``tokens``, with ``depth`` tokens of checksum ``mark`` before it, was cut to
        the first ``kept``."""
        ends = self._ends.get(namespace, {})
        for length in [n for n in ends if depth + kept < n <= depth + len(tokens)]:
            ends[length].discard(checksum(tokens[: length - depth], mark))
            if not ends[length]:
                del ends[length]

    def reach(self, context: Context, limit: int) -> int:
        """The longest entry that the context's key is or goes on from, ``limit`` at most."""
        key, namespace = context.key, context.namespace
        ends = self._ends.get(namespace)
        if not ends:
            return 0
        held = self._store.tree.match(key, len(key), namespace)[0]
        found = at = mark = 0
        for length in sorted(n for n in ends if n <= held):
            at, mark = length, checksum(key[at:length], mark)
            if mark in ends[length]:
                found = length
        return min(found, limit)


@contextmanager
def _cutting(store: Store, table: _Table) -> Iterator[None]:
    """Entries that end in what is evicted are gone from the table."""
    evict, lose = store.tree.evict, store.tree._lose
    cut: list[tuple[RadixNode, Namespace, int, int, Ints]] = []

    def losing(node: RadixNode, why: str) -> None:
        cut.append((node, store.tree.namespace(node), node.depth, node.mark, node.tokens[:]))
        lose(node, why)

    def evicted(
        count: int, why: str = "evicted", save: Save | None = None, choose: Choose | None = None
    ) -> int:
        freed = evict(count, why, save, choose)
        for node, namespace, depth, mark, tokens in cut:
            table.remove(namespace, depth, mark, tokens, len(node.tokens))
        cut.clear()
        return freed

    with patched(store.tree, evict=evicted, _lose=losing):
        yield
