"""MetaTree: the router's estimate of the engines' caches (SGLang paper, appendix A.4).

There is one radix tree for each namespace and adapter. Its edges are runs of block hashes
(``prompt``). A node has a ``Holding`` for every engine that is believed to cache a part of the
node's edge. Invariants:

    known     an engine that holds a part of an edge holds all edges above it
    used      a holding or node was used at least as recently as all those below it
    bounded   an engine's holdings do not exceed its capacity of tokens: the least recently used are
              dropped, the ends of paths first, as in the engine's own radix tree
    pruned    nodes that no engine holds are removed; the least recently used nodes too, if there
              are more than ``most_nodes``
"""

from __future__ import annotations

import heapq
import itertools
from array import array
from collections.abc import Iterator, Sequence
from itertools import islice

from sglang.srt.core.ints import common_prefix
from sglang.srt.routing.prompt import PrefixPath, blocks_in, tokens_at

EXAMINED = 256  # most children of a node that ``lose`` examines


class Holder:
    """The believed cache of an engine.

    Attributes:
        capacity: tokens of the engine's KV memory.
        tokens: number of tokens believed to be cached.
        count: number of the engine's holdings.
    """

    __slots__ = ("aged", "capacity", "count", "tokens")

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens = self.count = 0
        self.aged: list[tuple[int, int, int, Holding]] = []  # heap; ``used`` may be outdated

    @property
    def full(self) -> bool:
        """Whether a new prefix displaces another one."""
        return self.tokens * 20 >= self.capacity * 19


class Holding:
    """The first ``blocks`` blocks of a node's edge in an engine's cache, and ``more`` tokens after
    them of unknown hash, which the engine has generated."""

    __slots__ = ("blocks", "more", "node", "used")

    def __init__(self, node: MetaNode, blocks: int, used: int) -> None:
        self.node: MetaNode | None = node  # None: dropped
        self.blocks = blocks
        self.more = 0
        self.used = used

    @property
    def end(self) -> int:
        """Number of blocks from the root to the end of the holding."""
        assert self.node is not None
        return self.node.start + self.blocks


class MetaNode:
    """The edge that leads to a node, after ``start`` blocks, and its children by first hash."""

    __slots__ = ("children", "hashes", "holdings", "parent", "space", "start", "used")

    def __init__(
        self, parent: MetaNode | None, space: Space, start: int, hashes: array[int]
    ) -> None:
        self.parent = parent  # None: a root, or removed
        self.space = space
        self.start = start
        self.hashes = hashes
        self.children: dict[int, MetaNode] = {}
        self.holdings: dict[Holder, Holding] = {}
        self.used = 0

    @property
    def end(self) -> int:
        return self.start + len(self.hashes)


class Space:
    """The tree of one namespace and adapter. ``present``: number of holdings in it by engine."""

    __slots__ = ("key", "present", "root")

    def __init__(self, key: tuple[str, str]) -> None:
        self.key = key
        self.root = MetaNode(None, self, 0, array("I"))
        self.present: dict[Holder, int] = {}


Step = tuple[MetaNode, int]  # a node of a path, and the blocks of its edge that match


class MetaTree:
    """The trees of all namespaces. ``nodes``: number of their nodes, without the roots."""

    def __init__(self, most_nodes: int) -> None:
        """Make an empty tree of at most ``most_nodes``. Raises ValueError if that is below 1."""
        if most_nodes < 1:
            raise ValueError(f"most_nodes is {most_nodes}; it must be at least 1")
        self.most_nodes = most_nodes
        self.nodes = 0
        self._spaces: dict[tuple[str, str], Space] = {}
        self._aged: list[tuple[int, int, int, MetaNode]] = []  # heap; ``used`` may be outdated
        self._numbers = itertools.count()
        self._use = 0

    # -- reading ---------------------------------------------------------------------------------

    def match(self, path: PrefixPath) -> list[Step]:
        """Return the nodes along a path, without the root. Only the last may match in part."""
        space = self._spaces.get(path.space)
        found: list[Step] = []
        if space is None:
            return found
        node, at, hashes = space.root, 0, path.hashes
        while at < len(hashes):
            child = node.children.get(hashes[at])
            if child is None:
                break
            length = common_prefix(child.hashes, hashes, 0, at)
            found.append((child, length))
            at += length
            if length < len(child.hashes):
                break
            node = child
        return found

    def present(self, path: PrefixPath) -> dict[Holder, int]:
        """Return the engines that hold KV of a path's namespace and adapter."""
        space = self._spaces.get(path.space)
        return {} if space is None else space.present

    # -- growing ---------------------------------------------------------------------------------

    def insert(self, path: PrefixPath, holder: Holder) -> int:
        """Record that an engine holds a path and uses it now. Return the number of this use, which
        is larger than all earlier ones."""
        self._use += 1
        if not path.hashes:
            return self._use
        space = self._spaces.get(path.space)
        if space is None:
            space = self._spaces[path.space] = Space(path.space)
        node, at, hashes = space.root, 0, path.hashes
        while at < len(hashes):
            self._settle(node, holder)
            child = node.children.get(hashes[at])
            if child is None:
                child = self._leaf(node, hashes[at:])
            length = common_prefix(child.hashes, hashes, 0, at)
            at += length
            if length < len(child.hashes):
                child = self._split(child, length)
            self._hold(child, holder, length)
            node = child
        self._evict(holder)
        self._prune_old()
        return self._use

    def extend(self, path: PrefixPath, holder: Holder, tokens: int) -> None:
        """Record ``tokens`` of unknown hash after the end of a path that an engine holds."""
        steps = self.match(path)
        if not steps or steps[-1][0].start + steps[-1][1] < len(path.hashes):
            return
        node, length = steps[-1]
        held = node.holdings.get(holder)
        if held is not None and held.blocks == length:
            holder.tokens += max(tokens, held.more) - held.more
            held.more = max(tokens, held.more)
            self._evict(holder)

    # -- shrinking -------------------------------------------------------------------------------

    def lose(self, path: PrefixPath, holder: Holder, kept: int, before: int = 0) -> None:
        """Record that an engine holds only the first ``kept`` blocks of a path.

        ``before``: number of a use. Holdings used since then stay; a bounded number of other paths
        through the lost part is dropped too. 0: all holdings of the lost part are dropped.
        """
        for node, _ in reversed(self.match(path)):
            if node.end <= kept:
                break
            if before:
                for child in list(islice(node.children.values(), EXAMINED)):
                    held = child.holdings.get(holder)
                    if held is not None and held.used < before:
                        self._drop_below(child, holder)
            held = node.holdings.get(holder)
            if held is None or (before and held.used >= before):
                continue
            self._cut(node, holder, held, max(kept - node.start, 0))

    def retract(self, path: PrefixPath, holder: Holder, kept: int, use: int) -> None:
        """Undo use number ``use``: drop the blocks of a path after the first ``kept`` ones, unless
        they were used again since then."""
        for node, _ in reversed(self.match(path)):
            held = node.holdings.get(holder)
            if node.end <= kept or (held is not None and held.used != use):
                break
            if held is not None:
                self._cut(node, holder, held, max(kept - node.start, 0))

    def forget(self, holder: Holder) -> None:
        """Drop all holdings of an engine."""
        entries, holder.aged = holder.aged, []
        for entry in entries:
            held = entry[3]
            if held.node is not None:
                self._drop(held.node, holder, held)

    # -- auditing --------------------------------------------------------------------------------

    def all_nodes(self) -> Iterator[MetaNode]:
        """Yield all nodes except the roots, parents first."""
        stack = [node for space in self._spaces.values() for node in space.root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self, holders: Sequence[Holder]) -> None:
        """Raise AssertionError on any inconsistency. ``holders``: all engines of the tree."""
        tokens, counts = dict.fromkeys(holders, 0), dict.fromkeys(holders, 0)
        present: dict[tuple[tuple[str, str], Holder], int] = {}
        number = 0
        for node in self.all_nodes():
            number += 1
            above = node.parent
            assert above is not None, "a removed node is in the tree"
            assert node.hashes, "an edge without blocks"
            assert above.children[node.hashes[0]] is node, "a child under a wrong hash"
            assert node.start == above.end, "an edge does not begin where the one above ends"
            assert node.holdings, "a node that no engine holds"
            assert above.parent is None or above.used >= node.used, "a node older than its child"
            for holder, held in node.holdings.items():
                assert held.node is node, "a holding of another node"
                assert 0 < held.blocks <= len(node.hashes), "a holding of no block"
                if above.parent is not None:
                    upper = above.holdings[holder]
                    assert upper.blocks == len(above.hashes), "a path with a hole"
                    assert upper.used >= held.used, "a holding older than the one below"
                tokens[holder] += _tokens(node, held.blocks) + held.more
                counts[holder] += 1
                key = (node.space.key, holder)
                present[key] = present.get(key, 0) + 1
        assert number == self.nodes <= self.most_nodes, "the number of nodes is off"
        for holder in holders:
            assert holder.tokens == tokens[holder] <= holder.capacity, "an engine's tokens are off"
            assert holder.count == counts[holder], "an engine's holdings are off"
        counted = {(s.key, h): n for s in self._spaces.values() for h, n in s.present.items()}
        assert counted == present, "the presence of an engine is off"
        assert all(space.present for space in self._spaces.values()), "an empty space is kept"

    # -- nodes -----------------------------------------------------------------------------------

    def _leaf(self, parent: MetaNode, hashes: array[int]) -> MetaNode:
        node = MetaNode(parent, parent.space, parent.end, hashes)
        node.used = self._use
        parent.children[hashes[0]] = node
        self.nodes += 1
        heapq.heappush(self._aged, (self._use, -node.end, next(self._numbers), node))
        return node

    def _split(self, node: MetaNode, length: int) -> MetaNode:
        """Cut the edge to ``node`` after ``length`` blocks. Returns the new upper node."""
        parent = node.parent
        assert parent is not None
        upper = MetaNode(parent, node.space, node.start, node.hashes[:length])
        upper.used = node.used
        parent.children[upper.hashes[0]] = upper
        node.hashes, node.start, node.parent = node.hashes[length:], node.start + length, upper
        upper.children[node.hashes[0]] = node
        self.nodes += 1
        heapq.heappush(self._aged, (upper.used, -upper.end, next(self._numbers), upper))
        for holder, held in list(node.holdings.items()):
            if held.blocks > length:
                held.blocks -= length
                self._add(upper, holder, length, held.used)
            else:
                del node.holdings[holder]
                held.node, upper.holdings[holder] = upper, held
        if not node.holdings:
            self._unlink(node)
        return upper

    def _unlink(self, node: MetaNode) -> None:
        """Remove a node that no engine holds. Such a node has no children, because an engine that
        holds a child also holds the child's parents."""
        parent = node.parent
        assert parent is not None
        del parent.children[node.hashes[0]]
        node.parent = None
        self.nodes -= 1

    def _prune_old(self) -> None:
        """Remove the least recently used nodes beyond the limit."""
        aged = self._aged
        while self.nodes > self.most_nodes:
            used, _, _, node = aged[0]
            if node.parent is None:
                heapq.heappop(aged)
            elif node.used != used:
                heapq.heapreplace(aged, (node.used, -node.end, next(self._numbers), node))
            else:
                for holder, held in list(node.holdings.items()):
                    self._drop(node, holder, held)
        if len(aged) > 64 + 2 * self.nodes:
            self._aged = [entry for entry in aged if entry[3].parent is not None]
            heapq.heapify(self._aged)

    # -- holdings --------------------------------------------------------------------------------

    def _settle(self, node: MetaNode, holder: Holder) -> None:
        """Drop the tokens of unknown hash after a node, as the inserted path has their hashes."""
        held = node.holdings.get(holder)
        if held is not None:
            holder.tokens -= held.more
            held.more = 0

    def _hold(self, node: MetaNode, holder: Holder, blocks: int) -> None:
        """Record that an engine holds and uses a node's first ``blocks`` blocks."""
        node.used = self._use
        held = node.holdings.get(holder)
        if held is None:
            held = self._add(node, holder, blocks, self._use)
            holder.tokens += _tokens(node, blocks)
        elif held.blocks < blocks:
            holder.tokens += _tokens(node, blocks) - _tokens(node, held.blocks) - held.more
            held.blocks, held.more = blocks, 0
        held.used = self._use

    def _add(self, node: MetaNode, holder: Holder, blocks: int, used: int) -> Holding:
        held = node.holdings[holder] = Holding(node, blocks, used)
        holder.count += 1
        present = node.space.present
        present[holder] = present.get(holder, 0) + 1
        heapq.heappush(holder.aged, (used, -held.end, next(self._numbers), held))
        if len(holder.aged) > 64 + 2 * holder.count:
            holder.aged = [entry for entry in holder.aged if entry[3].node is not None]
            heapq.heapify(holder.aged)
        return held

    def _evict(self, holder: Holder) -> None:
        """Drop the least recently used holdings of an engine beyond its capacity."""
        while holder.tokens > holder.capacity:
            used, end, _, held = holder.aged[0]
            node = held.node
            if node is None:
                heapq.heappop(holder.aged)
            elif held.used != used or held.end != -end:
                entry = (held.used, -held.end, next(self._numbers), held)
                heapq.heapreplace(holder.aged, entry)
            elif held.more:
                cut = min(held.more, holder.tokens - holder.capacity)
                held.more -= cut
                holder.tokens -= cut
            else:
                excess = holder.tokens - holder.capacity
                keep = blocks_in(max(tokens_at(held.end) - excess, 0)) - node.start
                self._trim(node, holder, held, max(keep, 0))

    def _cut(self, node: MetaNode, holder: Holder, held: Holding, keep: int) -> None:
        """Keep at most ``keep`` blocks of a holding. If it loses any, drop all holdings below."""
        if keep >= held.blocks:
            return
        for child in list(node.children.values()):
            self._drop_below(child, holder)
        self._trim(node, holder, held, keep)

    def _trim(self, node: MetaNode, holder: Holder, held: Holding, keep: int) -> None:
        """Keep the first ``keep`` blocks of a holding that has no holdings below it."""
        if not keep:
            self._drop(node, holder, held)
            return
        holder.tokens -= _tokens(node, held.blocks) - _tokens(node, keep) + held.more
        held.blocks, held.more = keep, 0

    def _drop_below(self, top: MetaNode, holder: Holder) -> None:
        """Drop an engine's holdings of a node and of all nodes below."""
        found, stack = [], [top]
        while stack:
            node = stack.pop()
            held = node.holdings.get(holder)
            if held is not None:
                found.append((node, held))
                stack.extend(node.children.values())
        for node, held in reversed(found):
            self._drop(node, holder, held)

    def _drop(self, node: MetaNode, holder: Holder, held: Holding) -> None:
        """Drop one holding. The same operation must drop the holdings below it."""
        holder.tokens -= _tokens(node, held.blocks) + held.more
        holder.count -= 1
        held.node = None
        del node.holdings[holder]
        space = node.space
        space.present[holder] -= 1
        if not space.present[holder]:
            del space.present[holder]
            if not space.present:
                self._spaces.pop(space.key, None)
        if not node.holdings and node.parent is not None:
            self._unlink(node)


def _tokens(node: MetaNode, blocks: int) -> int:
    """Return the tokens of the first ``blocks`` blocks of a node's edge."""
    return tokens_at(node.start + blocks) - tokens_at(node.start)


def held_blocks(steps: Sequence[Step], holder: Holder) -> tuple[int, int]:
    """Return the number of blocks of a matched path that an engine holds, and the number of tokens
    of unknown hash after them, which may match the rest of the prompt."""
    low, high = 0, len(steps)  # the first ``low`` nodes are held, node ``high`` is not
    while low < high:
        middle = (low + high) // 2
        if holder in steps[middle][0].holdings:
            low = middle + 1
        else:
            high = middle
    if not low:
        return 0, 0
    node, length = steps[low - 1]
    held = node.holdings[holder]
    if low == len(steps) and held.blocks == length:
        return node.start + length, held.more
    return node.start + min(held.blocks, length), 0
