"""HostTier: KV that was evicted from the device, in host memory (SGLang paper, section 8).

The host tier is a radix tree, like the device's, over a pool of host pages. The KV of a token is in
the tree only together with the KV of all tokens before it. The worker copies pages at the beginning
of a pass: first from the device to the host, then from the host to the device; then the rows are
computed. Passes run in the order they were planned. So a device page may be given to a row of the
same pass that saves the page, and a pass may load what it saves.

Host pages that a planned pass writes or reads are locked until the plan is complete. Pages that a
pass writes are *unsure* until the pass is collected: a failed pass has copied nothing.

A lower tier (``disk/disk_tier``) may be below the host tier; it is notified of every path that is
complete in host memory. Its threads copy while passes run: host pages that they read are locked,
and pages that they write are taken from the pool (``lent``).
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sglang.srt.core.batch import PageMoves
from sglang.srt.core.clock import SYSTEM_CLOCK, Clock
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.namespace import Namespace
from sglang.srt.core.request_stats import CacheMiss
from sglang.srt.memory.pages import PagePool
from sglang.srt.memory.radix import Choose, RadixTree
from sglang.srt.memory.radix_node import RadixNode


class LowerTier(Protocol):
    """The tier below host memory (``disk/disk_tier``). ``choose``: as in ``HostTier``."""

    tree: RadixTree
    choose: Choose | None

    def known(self, tokens: Ints, namespace: Namespace) -> tuple[Ints, Namespace]:
        """Return the part of a path that this tier may keep, and the tier's namespace for it."""
        ...

    def note(self, tokens: Ints, namespace: Namespace) -> None:
        """Note that host memory has the KV of all of this path."""
        ...

    def clear(self) -> None:
        """Drop everything."""
        ...

    def check(self) -> None:
        """Raise AssertionError on any inconsistency."""
        ...

    @property
    def counts(self) -> dict[str, int]:
        """Counters and gauges by name."""
        ...

    @property
    def forgetting(self) -> bool:
        """Whether jobs in flight still lock host pages that were dropped."""
        ...


class Ghosts(Protocol):
    """Decides which pages without a claim are copied to host (``interception/ghost_list``)."""

    def left(self, pages: int, read: bool) -> None: ...
    def takes(self, pages: int, now: float) -> bool: ...
    def requested(self, pages: int, left: float) -> None: ...


class PassCopies(NamedTuple):
    """Host pages that a forward pass writes, and the tree paths that these pages complete."""

    pages: Ints
    paths: list[tuple[Ints, Namespace]]


class HostTier:
    """Copies of KV pages in host memory.

    Args:
        pages: size of the pool.
        page_size: tokens a page, as on the device.

    Attributes:
        tree: map from prefixes to host pages.
        saved: pages planned to be copied from the device since the start, failed passes included.
        below: the lower tier, or None.
        choose: selects the leaf to evict if some leaves have claims; None if no leaf has.
        ghosts: decides whether pages without a claim are copied to host memory; None: all are.
        lent: host pages that are in no tree, because the lower tier is filling them.
    """

    def __init__(self, pages: int, page_size: int, clock: Clock = SYSTEM_CLOCK) -> None:
        self.page_size = page_size
        self.tree = RadixTree(PagePool(pages), page_size, clock)
        self.saved = 0
        self.below: LowerTier | None = None
        self.choose: Choose | None = None
        self.ghosts: Ghosts | None = None
        self._read = set[int]()  # pages that were loaded to the device; kept if ``ghosts`` is set
        self.lent: set[int] = set()
        self._moves = PageMoves()
        self._paths: list[tuple[Ints, Namespace]] = []  # paths that the planned pass completes
        self._locked: list[RadixNode] = []
        self._flying: dict[int, PassCopies] = {}  # by the id of a pass that is not collected

    # -- one plan --------------------------------------------------------------------------------

    def save(self, tokens: Ints, pages: Ints, namespace: Namespace, most: int) -> int:
        """Plan copies of a path from the device, from the first page that host memory lacks on.

        Args:
            tokens: keys of the path, from the root on.
            pages: device pages of the path. Earlier passes must have computed them, since a pass
                copies before it computes its rows.
            most: most pages to copy.

        Return the number of pages to copy.
        """
        node, held = self.tree.lock(tokens, len(tokens), namespace)
        first = len(held)
        count = min(len(pages) - first, most)
        if count > self.tree.pool.free:
            self.evict(count - self.tree.pool.free)
            count = min(count, self.tree.pool.free)
        if count > 0:
            own = self.tree.pool.take(count)
            node, _, _ = self.tree.publish(node, tokens, first * self.page_size, own)
            self._moves.stores += pages[first : first + count]
            self._moves.stored += own
            if self._read:
                self._read.difference_update(own)
            self.saved += count
            if self.below is not None:
                self._paths.append((tokens[: (first + count) * self.page_size], namespace))
        self._locked.append(node)
        return max(count, 0)

    def takes(self, leaf: RadixNode) -> bool:
        """Return whether to copy a leaf that is evicted from the device."""
        ghosts = self.ghosts
        if ghosts is None or leaf.claims:
            return True
        return ghosts.takes(len(leaf.pages), self.tree.clock.now())

    def missed(self, miss: CacheMiss, tokens: Ints, limit: int, namespace: Namespace) -> None:
        """Note how many tokens of a request were once on the device and are now in no tier."""
        if self.ghosts is not None:
            had = max(self.match(tokens, limit, namespace) - miss.matched, 0)
            left = self.tree.clock.now() - miss.evicted_ago
            self.ghosts.requested((miss.evicted - had) // self.page_size, left)

    def evict(self, count: int) -> None:
        """Free at least ``count`` host pages, if so many are unlocked."""
        leaves: list[tuple[RadixNode, int, bool]] = []

        def leaving(leaf: RadixNode) -> None:
            if not leaf.claims:
                leaves.append((leaf, len(leaf.pages), leaf.pages[-1] in self._read))

        save = None if self.ghosts is None else leaving
        self.tree.evict(count, save=save, choose=self.choose)
        if self.ghosts is not None:
            for leaf, had, read in leaves:
                self.ghosts.left(had - len(leaf.pages), read)

    def held(self, tokens: Ints, start: int, limit: int, namespace: Namespace, most: int) -> Ints:
        """Lock and return at most ``most`` host pages with the KV of ``tokens[start:limit]``."""
        node, held = self.tree.lock(tokens, limit, namespace)
        self._locked.append(node)
        first = start // self.page_size
        return held[first : first + most]

    def load(self, held: Ints, pages: Ints) -> None:
        """Plan copies from locked host pages ``held`` to device pages ``pages``."""
        if self.ghosts is not None:
            self._read.update(held)
        self._moves.loads += held
        self._moves.loaded += pages

    def planned(self, number: int) -> PageMoves | None:
        """End the plan of pass ``number``. Return its copies, or None if there are none."""
        for node in self._locked:
            self.tree.unlock(node)
        self._locked.clear()
        moves = self._moves
        if not moves.stores and not moves.loads:
            return None
        self._moves = PageMoves()
        self._flying[number] = PassCopies(moves.stored, self._paths)
        self._paths = []
        return moves

    def collected(self, number: int) -> None:
        """Note that pass ``number`` was computed and its copies were made."""
        copies = self._flying.pop(number, None)
        if copies is not None and self.below is not None:
            for tokens, namespace in copies.paths:
                self.below.note(tokens, namespace)

    def failed(self) -> None:
        """Drop the pages of passes that were not collected. No pass may still run on the device."""
        unsure = self._unsure
        self._flying.clear()
        if unsure:
            self.tree.prune(unsure)

    # -- the lower tier --------------------------------------------------------------------------

    @property
    def last_pass(self) -> int:
        """Id of the last pass in flight that copies host pages; 0: none."""
        return max(self._flying, default=0)

    def passed(self, number: int) -> bool:
        """Return whether all passes up to ``number`` that copy host pages were collected."""
        return all(flying > number for flying in self._flying)

    def copies(self, tokens: Ints, limit: int, namespace: Namespace) -> Ints:
        """Return the host pages of ``tokens[:limit]``, up to the first *unsure* page."""
        found, unsure = ints(), self._unsure
        for node, length in self.tree.walk(tokens, limit, namespace):
            found += node.pages[: length // self.page_size]
        sure = next((i for i, page in enumerate(found) if page in unsure), len(found))
        return found[:sure]

    @property
    def _unsure(self) -> set[int]:
        return {page for copies in self._flying.values() for page in copies.pages}

    # -- the cache -------------------------------------------------------------------------------

    def match(self, tokens: Ints, limit: int, namespace: Namespace) -> int:
        """Return how many of ``tokens[:limit]`` have KV in host memory, changing nothing."""
        if self.below is not None and self.below.forgetting:
            return 0
        return self.tree.match(tokens, limit, namespace)[0]

    def clear(self) -> int:
        """Drop everything, in the lower tier too. Return the number of host pages."""
        if self.below is not None:
            self.below.clear()
        return self.tree.clear()

    def drop_adapter(self, number: int) -> None:
        """Drop all KV of an adapter."""
        for space in [space for space in self.tree.namespaces if space.adapter == number]:
            self.tree.drop(space)

    def check(self) -> None:
        """Raise AssertionError if a page is lost or a lock was not released."""
        assert not self._locked, "a plan was not ended"
        self.tree.pool.check([*self.tree.check(), *self.lent])
        if self.below is not None:
            self.below.check()
        else:
            assert not self.tree.protected, "host pages are locked between plans"
