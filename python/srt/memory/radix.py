"""RadixTree: the KV cache as a tree over token prefixes, with LRU eviction of leaves.

SGLang paper, section 3. An edge is a run of tokens with the pages of their KV; its length is a
multiple of the page size. Nodes on the path of an active context are locked: ``locks`` counts the
contexts at the node or below it, and a locked node is never evicted. A context holds the node
object as its lock; a split keeps the object at the lower end, so that locks stay valid.

    free pages       the pool
    evictable        pages of unlocked nodes
    protected        pages of locked nodes

``claims`` counts the contexts at a node or below it that wait for a tool (``interception/parked``).
A claim does not lock: the caller of ``evict`` chooses when a leaf with a claim is evicted.

Contexts share KV only below the same root. Each namespace has one root.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TypeAlias

from sglang.srt.core.clock import SYSTEM_CLOCK, Clock
from sglang.srt.core.ints import Ints, common_prefix, ints
from sglang.srt.core.namespace import Namespace
from sglang.srt.core.tree_watcher import TreeWatcher
from sglang.srt.memory.lost import Lost
from sglang.srt.memory.pages import PagePool
from sglang.srt.memory.radix_node import Key, RadixNode

MEMORY = 256  # number of recent leaves that ``RadixTree.reuse`` is measured over, about
Save: TypeAlias = "Callable[[RadixNode], None]"
# Argument: the least recently used leaf without a claim, or None. Result: the leaf to evict.
Choose: TypeAlias = "Callable[[RadixNode | None], RadixNode | None]"


class RadixTree:
    """Map from prefixes to KV pages. The tree owns its pages: callers take pages from the pool and
    publish them; eviction returns them to the pool.

    ``version`` grows whenever a match may change (tokens, pins or path). ``evictable`` and
    ``protected`` are exact numbers of pages. Outdated entries of the heap of eviction candidates
    are removed once it has ``heap_share`` entries a page of the tree and ``heap_spare`` more.
    """

    heap_spare, heap_share = 64, 4

    def __init__(self, pool: PagePool, page_size: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self.pool = pool
        self.page_size = page_size
        self.evictable = 0
        self.protected = 0
        self.version = 0
        self.evicted = 0  # pages, since the start
        self._left = self._used_again = 0.0  # leaves without a claim: unlocked, used again
        self.lost = Lost(clock)
        self.watcher: TreeWatcher | None = None
        self._roots: dict[Namespace, RadixNode] = {}
        self._namespaces: dict[int, Namespace] = {}  # by the root's number
        self._numbers = itertools.count()
        self._uses = itertools.count(1)
        self._heap: list[
            tuple[int, int, RadixNode]
        ] = []  # candidates for eviction; entries may be outdated

    # -- reading ---------------------------------------------------------------------------------

    def match(
        self, tokens: Ints, limit: int, namespace: Namespace
    ) -> tuple[int, int, tuple[int, ...]]:
        """Find the longest cached prefix of ``tokens[:limit]``, changing nothing.

        Return (tokens matched, their pages that are evictable now, numbers of the nodes passed).
        """
        node = self._roots.get(namespace)
        done, pins = 0, 0
        path: list[int] = []
        while node is not None:
            node, length = self._child(node, tokens, done, limit)
            if node is None:
                break
            path.append(node.number)
            done += length
            if node.locks == 0:
                pins += length // self.page_size
            if length < len(node.tokens):
                break
        return done, pins, tuple(path)

    # -- locking ---------------------------------------------------------------------------------

    def lock(self, tokens: Ints, limit: int, namespace: Namespace) -> tuple[RadixNode, Ints]:
        """Lock the longest cached prefix of ``tokens[:limit]``. Return its last node and pages."""
        root = self._roots.get(namespace)
        if root is None:
            root = self._roots[namespace] = RadixNode(next(self._numbers), None, ints(), ints())
            self._namespaces[root.number] = namespace
        root.locks += 1
        return self.deepen(root, tokens, 0, limit)

    def deepen(
        self, node: RadixNode, tokens: Ints, start: int, limit: int
    ) -> tuple[RadixNode, Ints]:
        """Move a lock from ``node``, which ends at ``start``, down along ``tokens[start:limit]``.

        Returns the node now locked and the pages gained.
        """
        gained = ints()
        use, now = next(self._uses), self.clock.now()
        while True:
            child, length = self._child(node, tokens, start, limit)
            if child is None:
                break
            if length < len(child.tokens):
                child = self._split(child, length)
            if child.locks == 0:
                if not child.children and not child.claims:
                    self._used_again += 1
                self.version += 1
                self.evictable -= len(child.pages)
                self.protected += len(child.pages)
            child.locks += 1
            child.used, child.at = use, now
            gained.extend(child.pages)
            start += length
            node = child
        return node, gained

    def unlock(self, node: RadixNode) -> None:
        """Release one lock on ``node`` and on all nodes of its path."""
        use, now = next(self._uses), self.clock.now()
        step: RadixNode | None = node
        while step is not None:
            step.locks -= 1
            step.used, step.at = use, now
            if step.locks == 0 and step.parent is not None:
                self.version += 1
                self.evictable += len(step.pages)
                self.protected -= len(step.pages)
                self._offer(step)
            step = step.parent
        if not node.locks and not node.claims and not node.children:
            self._left += 1
            if self._left > MEMORY:
                self._left, self._used_again = self._left / 2, self._used_again / 2
        self._drop_root_if_empty(node)

    def continues(self, node: RadixNode, tokens: Ints, start: int) -> bool:
        """Return whether the tree has a page of ``tokens[start:]`` below ``node``."""
        return self._child(node, tokens, start, len(tokens))[1] > 0

    def exclusive(self, node: RadixNode) -> int:
        """Return the number of pages that ``unlock(node)`` would make evictable."""
        pages = 0
        step: RadixNode | None = node
        while step is not None and step.locks == 1:
            pages += len(step.pages)
            step = step.parent
        return pages

    # -- claims ----------------------------------------------------------------------------------

    @property
    def reuse(self) -> float:
        """Share of the recent leaves without a claim that were used again after their unlock."""
        return min((self._used_again + 1) / (self._left + 2), 1.0)

    def claim(self, tokens: Ints, namespace: Namespace) -> RadixNode | None:
        """Put a claim on the cached prefix of ``tokens``. Return its last node, or None if nothing
        is cached."""
        last = None
        for node, length in self.walk(tokens, len(tokens), namespace):
            last = node if length else last
        if last is not None:
            if not last.locks and not last.claims:
                self._left = max(self._left - 1, 0.0)  # the leaf has a claim from now on
            self._count_claim(last, 1)
        return last

    def claim_below(self, node: RadixNode, tokens: Ints) -> RadixNode:
        """Move a claim from ``node``, on the path of ``tokens``, down to the end of the cached
        prefix of ``tokens``. Return the node with the claim."""
        while True:
            end = node.depth + len(node.tokens)
            child, length = self._child(node, tokens, end, len(tokens))
            if child is None or not length:
                return node
            child.claims += 1
            node = child

    def unclaim(self, node: RadixNode) -> None:
        """Remove the claim from ``node``, which ``claim`` or ``claim_below`` returned."""
        self._count_claim(node, -1)

    def _count_claim(self, node: RadixNode, change: int) -> None:
        step: RadixNode | None = node
        while step is not None:
            step.claims += change
            if change < 0 and not step.claims and step.pages:
                self._offer(step)
            step = step.parent

    # -- growing and shrinking -------------------------------------------------------------------

    def publish(
        self, node: RadixNode, tokens: Ints, start: int, pages: Ints
    ) -> tuple[RadixNode, Ints, Ints]:
        """Add ``pages``, the KV of the tokens from ``start`` on, below ``node``.

        The caller must hold a lock on ``node``, which ends at ``start``; the lock moves to the new
        end. If the tree has KV of some of these tokens, it keeps its own pages.

        Return (node now locked, the tree's pages for the range, the caller's pages not taken).
        """
        end = start + len(pages) * self.page_size
        node, kept = self.deepen(node, tokens, start, end)
        spare, rest = pages[: len(kept)], pages[len(kept) :]
        if rest:
            at = start + len(kept) * self.page_size
            leaf = RadixNode(next(self._numbers), node, tokens[at:end], rest)
            leaf.locks = 1
            leaf.used, leaf.at = next(self._uses), self.clock.now()
            node.children[self._key(tokens, at)] = leaf
            if self.watcher is not None:
                space = self._namespaces.get(node.number)
                self.watcher.stored(leaf.number, node.number, leaf.tokens, space)
            self.protected += len(rest)
            self.version += 1
            node = leaf
        return node, kept + rest, spare

    def evict(
        self, count: int, why: str = "evicted", save: Save | None = None,
        choose: Choose | None = None,
    ) -> int:  # fmt: skip
        """Free at least ``count`` pages if so many are evictable, least recently used leaves first.

        A leaf longer than needed loses only its tail. ``why`` is recorded in ``lost``. Return the
        number of pages freed. ``save`` is called with each leaf before the cut; it must not change
        this tree. ``choose`` selects the oldest leaf without a claim or a leaf with a claim; None:
        claims are ignored.
        """
        freed = 0
        while freed < count:
            node = self._oldest(claimed=choose is None)
            if choose is not None:
                node = choose(node)
            if node is None:
                break
            if save is not None:
                save(node)
            freed += self.cut(node, count - freed, why)
        return freed

    def cut(self, node: RadixNode, count: int, why: str = "evicted") -> int:
        """Free the last ``count`` pages of an unlocked leaf, at most all of them. Return their
        number."""
        count = min(len(node.pages), count)
        self.pool.give(node.pages[-count:])
        key = self._key(node.tokens, 0)
        self._lose(node, why)
        if self.watcher is not None:
            self.watcher.cut(node.number, count * self.page_size)
        del node.pages[-count:], node.tokens[-count * self.page_size :]
        self.evictable -= count
        self.evicted += count
        self.version += 1
        if node.pages:
            return count  # the leaf's entry in the heap stays valid
        parent = node.parent
        assert parent is not None
        del parent.children[key]
        self._offer(parent)
        self._drop_root_if_empty(parent)
        return count

    def _oldest(self, claimed: bool) -> RadixNode | None:
        """Return the least recently used leaf or None. ``claimed``: with a claim or without."""
        oldest = self._top(claimed)
        if oldest is None and claimed and self.evictable:
            for node in self.nodes():  # ``_top`` has removed the entries of leaves with a claim
                self._offer(node)
            oldest = self._top(claimed)
        return oldest

    def _top(self, claimed: bool) -> RadixNode | None:
        """Return the first valid leaf of the heap, after removing outdated entries; or None."""
        while self._heap:
            used, _, node = self._heap[0]
            old = node.locks or node.children or node.used != used or not node.pages
            if not old and (claimed or not node.claims):
                return node
            heapq.heappop(self._heap)  # outdated: used, extended, split or evicted since
        return None

    def clear(self, why: str = "flushed") -> int:
        """Evict all evictable pages. Return their number."""
        return self.evict(self.evictable, why)

    def drop(self, namespace: Namespace) -> int:
        """Free all pages of a namespace, none of which may be locked; ``lost`` does not record
        them. Return their number."""
        root = self._roots.pop(namespace)
        assert not root.locks, "a namespace in use cannot be dropped"
        del self._namespaces[root.number]
        self.version += 1
        freed, stack = 0, list(root.children.values())
        while stack:
            node = stack.pop()
            stack.extend(node.children.values())
            self.pool.give(node.pages)
            freed += len(node.pages)
            if self.watcher is not None:
                self.watcher.cut(node.number, len(node.tokens))
            node.pages, node.tokens = ints(), ints()  # like an evicted node
        self.evictable -= freed
        return freed

    def prune(self, pages: Collection[int]) -> None:
        """Cut every edge that contains one of ``pages`` before the first of them, and drop all
        nodes below. None of them may be locked; ``lost`` does not record them."""
        for node in list(self.nodes()):
            keep = next((i for i, page in enumerate(node.pages) if page in pages), len(node.pages))
            if keep == len(node.pages):
                continue
            assert not node.locks, "an edge in use cannot be cut"
            stack, parent, key = [node], node.parent, self._key(node.tokens, 0)
            while stack:
                step = stack.pop()
                stack.extend(step.children.values())
                first = keep if step is node else 0
                self.pool.give(step.pages[first:])
                if self.watcher is not None:
                    self.watcher.cut(step.number, len(step.tokens) - first * self.page_size)
                self.evictable -= len(step.pages) - first
                step.children = {}
                del step.pages[first:], step.tokens[first * self.page_size :]
            self.version += 1
            if keep:
                self._offer(node)
                continue
            assert parent is not None
            del parent.children[key]
            self._offer(parent)
            self._drop_root_if_empty(parent)

    # -- paths -----------------------------------------------------------------------------------

    def path(self, node: RadixNode) -> tuple[Ints, Ints]:
        """Return the tokens and the pages from the root to the end of ``node``."""
        edges: list[RadixNode] = []
        step: RadixNode | None = node
        while step is not None:
            edges.append(step)
            step = step.parent
        tokens, pages = ints(), ints()
        for edge in reversed(edges):
            tokens += edge.tokens
            pages += edge.pages
        return tokens, pages

    def root(self, namespace: Namespace) -> RadixNode | None:
        """Return the root of a namespace."""
        return self._roots.get(namespace)

    def namespace(self, node: RadixNode) -> Namespace:
        """Return the namespace that ``node`` belongs to."""
        while node.parent is not None:
            node = node.parent
        return self._namespaces[node.number]

    @property
    def namespaces(self) -> Iterator[Namespace]:
        """All namespaces with a root."""
        return iter(self._roots)

    def walk(
        self, tokens: Ints, limit: int, namespace: Namespace
    ) -> Iterator[tuple[RadixNode, int]]:
        """Yield the nodes on the path of ``tokens[:limit]`` from the root on, each with the number
        of its tokens that match. Only the last node may match in part."""
        node, length, done = self._roots.get(namespace), 0, 0
        while node is not None:
            yield node, length
            done += length
            if length < len(node.tokens):
                return
            node, length = self._child(node, tokens, done, limit)
            if not length:
                return

    # -- auditing --------------------------------------------------------------------------------

    def nodes(self) -> Iterator[RadixNode]:
        """Yield every node with an edge, parents first."""
        stack = list(self._roots.values())
        while stack:
            node = stack.pop()
            if node.parent is not None:
                yield node
            if node.children:
                stack.extend(node.children.values())

    def check(self, locks: Mapping[int, int] | None = None) -> Ints:
        """Raise AssertionError on any inconsistency. Return the pages in the tree. ``locks``: the
        expected number of locks by node number, 0 if missing; None: not checked."""
        owned = ints()
        evictable = protected = 0
        offered = {(used, node.number) for used, _, node in self._heap}
        for node in self.nodes():
            parent, children, held = node.parent, node.children, node.locks
            count = len(node.pages)
            assert count, "an edge without pages"
            assert len(node.tokens) == count * self.page_size, "edge and pages differ"
            assert parent is not None
            assert parent.locks >= held >= 0, "a child outlives its parent's lock"
            assert locks is None or held == locks.get(node.number, 0), "a lock without a holder"
            below = sum(child.claims for child in children.values()) if children else 0
            assert node.claims >= below >= 0, "a claim below a node that does not count it"
            assert parent.children[self._key(node.tokens, 0)] is node, "child under wrong key"
            owned.extend(node.pages)
            if held:
                protected += count
            else:
                evictable += count
                known = children or node.claims or (node.used, node.number) in offered
                assert known, "a leaf that eviction does not find"
        assert (evictable, protected) == (self.evictable, self.protected), "counts are off"
        return owned

    # -- inside ----------------------------------------------------------------------------------

    def _key(self, tokens: Ints, at: int) -> Key:
        if self.page_size == 1:
            return tokens[at]
        return tokens[at : at + self.page_size].tobytes()

    def _child(
        self, node: RadixNode, tokens: Ints, at: int, limit: int
    ) -> tuple[RadixNode | None, int]:
        """Return the child on the path of ``tokens[at:limit]`` and how many tokens match."""
        limit = min(limit, len(tokens))
        if limit - at < self.page_size:
            return None, 0
        child = node.children.get(self._key(tokens, at))
        if child is None:
            return None, 0
        length = min(common_prefix(child.tokens, tokens, 0, at), limit - at)
        return child, length - length % self.page_size

    def _split(self, node: RadixNode, length: int) -> RadixNode:
        """Split the edge to ``node`` after ``length`` tokens. Return the new upper node."""
        self.version += 1
        pages = length // self.page_size
        parent = node.parent
        assert parent is not None
        upper = RadixNode(next(self._numbers), parent, node.tokens[:length], node.pages[:pages])
        upper.locks, upper.used, upper.at = node.locks, node.used, node.at
        upper.claims = node.claims
        parent.children[self._key(node.tokens, 0)] = upper
        if self.watcher is not None:
            self.watcher.split(node.number, upper.number, length)
        node.tokens, node.pages = node.tokens[length:], node.pages[pages:]
        node.parent = upper
        node.depth, node.mark = upper.depth + length, upper.sum
        upper.children[self._key(node.tokens, 0)] = node
        return upper

    def _lose(self, node: RadixNode, why: str) -> None:
        """Record in ``lost`` an edge that is about to be cut."""
        start = (self.namespace(node), node.depth, node.mark, node.tokens[0])
        self.lost.note(start, node.number, node.tokens, why)

    def _offer(self, node: RadixNode) -> None:
        """Add a node to the heap of eviction candidates, if it is an unlocked leaf."""
        if node.parent is not None and not node.locks and not node.children:
            heapq.heappush(self._heap, (node.used, next(self._numbers), node))
            pages = self.evictable + self.protected
            if len(self._heap) > self.heap_spare + self.heap_share * pages:
                self._heap = [e for e in self._heap if e[2].used == e[0] and e[2].pages]
                heapq.heapify(self._heap)

    def _drop_root_if_empty(self, node: RadixNode) -> None:
        while node.parent is not None:
            node = node.parent
        if not node.locks and not node.children:
            namespace = self._namespaces.pop(node.number, None)
            if namespace is not None:
                del self._roots[namespace]
