"""Store: all contexts and their KV pages. The only code that changes a context.

    idle      holds no lock and no pages; its computed KV is in the radix tree, evictable
    active    holds a locked path of the tree (``shared`` leading pages) and pages of its own after

Pages move from a context to the tree when a prefill chunk is planned (``advance(publish=True)``)
and when the context is released, never back. Passes run in the order they were planned, so KV that
a planned pass writes may be read by rows of the same pass and of later passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, cast

from sglang.srt.core.batch import PageMoves
from sglang.srt.core.clock import SYSTEM_CLOCK, Clock
from sglang.srt.core.context import Context
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.media_marks import Medias, Numbers, marked
from sglang.srt.core.media_marks import cut as cut_media
from sglang.srt.core.media_marks import verify as verify_media
from sglang.srt.core.namespace import BASE, Namespace
from sglang.srt.core.request_stats import CacheMiss
from sglang.srt.core.segments import Segments, cut, verify
from sglang.srt.core.tree_watcher import TreeWatcher
from sglang.srt.memory.host_tier import HostTier
from sglang.srt.memory.match import Match
from sglang.srt.memory.misses import miss_of
from sglang.srt.memory.pages import PagePool
from sglang.srt.memory.radix import Choose, RadixTree
from sglang.srt.memory.radix_node import RadixNode
from sglang.srt.memory.tree_retelling import retell


class Transfer(Protocol):
    """Budget of a pass for copies between the device and host memory, in pages."""

    @property
    def storable(self) -> int: ...
    @property
    def loadable(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def awaited(self) -> int: ...
    @property
    def backlog(self) -> int: ...
    def store(self, pages: int) -> None: ...
    def load(self, pages: int) -> None: ...


class PageHolder(Protocol):
    """Holder of pool pages besides contexts and the tree (``spaces.space_system``)."""

    @property
    def held(self) -> int: ...
    @property
    def adapters(self) -> set[int]: ...
    def locks(self) -> Iterable[int]:
        """Return the node numbers of each path of the tree that the holder has locked."""
        ...

    def check(self) -> set[int]:
        """Return the pages held. Raises AssertionError if a page is lost."""
        ...


AHEAD = 256  # tokens that are evicted at once if they are copied to host memory


class Store:
    """Contexts by id, the page pool and the radix tree.

    Args:
        pages: size of the pool.
        page_size: tokens a page.
        share: False: no KV is kept between requests or shared by them (for comparison).
        clock: source of the times of uses and evictions in the tree.
        host_pages: pages of host memory for KV evicted from the device; 0: no host tier.

    Attributes:
        transfer: budget of the planned pass for copies to and from host memory, set by the planner;
            None before the first plan, and without a host tier.
        choose: selects the leaf to evict if some leaves have claims; None if no leaf has.
        holder: another holder of pages than contexts and the tree; None: there is none.
    """

    def __init__(
        self, pages: int, page_size: int = 1, share: bool = True, clock: Clock = SYSTEM_CLOCK,
        host_pages: int = 0,
    ) -> None:  # fmt: skip
        if page_size < 1:
            raise ValueError(f"page_size is {page_size}; it must be at least 1")
        self.page_size = page_size
        self.share = share
        self.pool = PagePool(pages)
        self.tree = RadixTree(self.pool, page_size, clock)
        self.host = HostTier(host_pages, page_size, clock) if host_pages and share else None
        self.transfer: Transfer | None = None
        self.choose: Choose | None = None
        self.holder: PageHolder | None = None
        self.contexts: dict[int, Context] = {}
        self.numbers = Numbers()
        self._active: dict[int, Context] = {}
        self._dropped: list[int] = []  # contexts released since the last pass was planned
        self._redone: set[int] = set()  # pages of the tree that the planned pass rewrites

    # -- contexts --------------------------------------------------------------------------------

    def open(
        self,
        number: int,
        tokens: Ints,
        namespace: Namespace = BASE,
        segments: Segments = (),
        media: Medias = (),
    ) -> Context:
        """Add a context of these tokens under id ``number``. Raises ValueError if the id is in use,
        or segments or media do not fit the tokens."""
        verify(segments, len(tokens), self.page_size)
        verify_media(media, len(tokens))
        context = Context(number, tokens, namespace, segments, media)
        context.head = marked(tokens, media, self.numbers)
        return self._add(context)

    def fork(self, context: Context, child: int, length: int) -> Context:
        """Open context ``child`` with the first ``length`` tokens of ``context``; none may be a
        draft. Move their KV to the tree, where the child will find it."""
        self._publish(context, length)
        tokens = context.tokens[:length]
        segments = cut(context.segments, len(tokens))
        media = cut_media(context.media, length)
        copy = Context(child, tokens, context.namespace, segments, media, context.head[:length])
        copy.checked = min(context.checked, length)
        return self._add(copy)

    def append(self, context: Context, tokens: Ints) -> None:
        context.tokens.extend(tokens)

    def truncate(self, context: Context, length: int) -> None:
        """Cut a context to ``length`` tokens. Release it if the cut is in its shared pages."""
        if length >= len(context.tokens):
            return
        if context.active and length < context.shared * self.page_size:
            self.release(context)
        del context.tokens[length:]
        context.segments = cut(context.segments, length)
        context.media = cut_media(context.media, length)
        del context.head[length:]
        context.saved = min(context.saved, length)
        context.ready = min(context.ready, length)
        context.checked = min(context.checked, length)
        keep = max(context.shared, self._pages(length))
        if keep < len(context.pages):
            self.pool.give(context.pages[keep:])
            del context.pages[keep:]
            context.sent = min(context.sent, keep)

    def redo(self, context: Context) -> None:
        """Let the next pass compute the last token again, into the same page (same KV)."""
        context.saved = min(context.saved, len(context.tokens) - 1)
        context.ready = min(context.ready, context.saved)

    def writes_alone(self, context: Context) -> bool:
        """Note that the planned pass gets a row of the context. Return False if another row of the
        pass recomputes a token (``redo``) into the same page."""
        again = context.pages[context.saved // self.page_size : context.shared]
        free = self._redone.isdisjoint(again)
        self._redone.update(again)
        return free

    def close(self, context: Context) -> None:
        if context.active:
            self.release(context)
        del self.contexts[context.id]

    # -- memory ----------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """A number that grows whenever a match may change."""
        return self.tree.version + (0 if self.host is None else self.host.tree.version)

    @property
    def available(self) -> int:
        """Number of pages that are free or evictable."""
        return self.pool.free + self.tree.evictable

    def match(self, context: Context, limit: int) -> Match:
        """Return the prefix that ``acquire(context, limit)`` would lock, and the number of tokens
        after it that ``load`` could copy from host memory. Changes nothing."""
        if not self.share:
            return Match(0, 0, ())
        key, space = context.key, context.namespace
        found, pins, path = self.tree.match(key, limit, space)
        saved = 0 if self.host is None else self.host.match(key, limit, space)
        return Match(found, pins, path, max(saved - found, 0))

    def miss(self, context: Context, limit: int) -> CacheMiss:
        """Explain why the cache has no longer prefix of the context. Call before ``acquire``."""
        if not self.share:
            return CacheMiss(0, limit)
        found = miss_of(self.tree, context.key, limit, context.namespace)
        if found.evicted and self.host is not None:
            self.host.missed(found, context.key, limit, context.namespace)
        return found

    def acquire(self, context: Context, limit: int) -> int:
        """Lock the longest cached prefix of at most ``limit`` tokens. For an active context, extend
        the locked path if the cache has more by now. Return the number of tokens gained."""
        if not context.active:
            limit = limit if self.share else 0
            node, pages = self.tree.lock(context.key, limit, context.namespace)
            self._active[context.id] = context
        elif self.share and len(context.pages) == context.shared:
            start = context.shared * self.page_size
            node, pages = self.tree.deepen(self._node(context), context.key, start, limit)
        else:
            return 0
        context.lock = node
        context.pages.extend(pages)
        context.shared += len(pages)
        context.ready = context.saved = context.shared * self.page_size
        return len(pages) * self.page_size

    def load(self, context: Context, limit: int) -> int:
        """Plan copies from host memory of the KV of ``tokens[saved:limit]``, as far as host memory
        has it. Return the number of tokens; ``saved`` grows by it."""
        host, transfer = self.host, self.transfer
        most = transfer.loadable if transfer is not None else 0
        first = context.saved // self.page_size
        idle = not context.active  # released by a cut
        if host is None or transfer is None or not most or idle or first < context.shared:
            return 0
        held = host.held(context.key, first * self.page_size, limit, context.namespace, most)
        count = (first + len(held)) * self.page_size - context.saved
        if count <= 0 or not self.grow(context, count):
            return 0
        host.load(held, context.pages[first : first + len(held)])
        transfer.load(len(held))
        context.saved = context.ready = context.saved + count
        self._publish(context, context.saved, planned=True)
        return count

    def on_host(self, context: Context, limit: int) -> int:
        """Return for how many of ``tokens[saved:limit]`` host memory has KV."""
        if self.host is None:
            return 0
        return max(self.host.match(context.key, limit, context.namespace) - context.saved, 0)

    def grow(self, context: Context, count: int) -> bool:
        """Take pages for ``count`` tokens after ``saved``, evicting if needed. Return False if
        there are too few."""
        need = self._pages(context.saved + count) - len(context.pages)
        if need <= 0:
            return True
        free = self.pool.free
        if need > free:
            if need > free + self.tree.evictable:
                return False
            if self.host is None:
                self.tree.evict(need - free, choose=self.choose)
            else:  # several pages at once, since each eviction walks the path to a leaf
                room = self.transfer.storable if self.transfer is not None else 0
                ahead = min(AHEAD // self.page_size, self.tree.evictable // 8, room)
                if self.choose is not None:  # take from claims only as much as the pass needs
                    taken = self.transfer.tokens if self.transfer is not None else 0
                    ahead = min(ahead, self._pages(taken))
                self.tree.evict(max(need - free, ahead), save=self._save, choose=self.choose)
        try:
            context.pages.extend(self.pool.take(need))
        except MemoryError:
            return False
        return True

    def take(self, count: int) -> Ints:
        """Take pages for ``holder``, evicting if needed. Raises MemoryError, taking none, if there
        are too few."""
        if self.pool.free < count <= self.available:
            self.tree.evict(count - self.pool.free, choose=self.choose)
        return self.pool.take(count)

    def advance(self, context: Context, count: int, publish: bool) -> None:
        """Note that a planned pass computes the next ``count`` tokens and sends the page table's
        new entries to the worker. ``publish``: move full pages to the tree, for other contexts."""
        context.sent = len(context.pages)
        context.saved += count
        context.ready = context.saved
        if publish:
            self._publish(context, context.saved, planned=True)

    def moves(self, number: int) -> PageMoves | None:
        """End the plan of pass ``number``. Return its copies to and from host memory, or None."""
        self._redone.clear()
        return None if self.host is None else self.host.planned(number)

    def exclusive(self, context: Context) -> int:
        """Return the number of pages that releasing the context would make available."""
        own = len(context.pages) - context.shared
        return own + self.tree.exclusive(self._node(context)) if context.active else 0

    def release(self, context: Context, keep: bool = True) -> None:
        """Make a context idle, if it is active. Its KV stays in the tree, evictable, unless sharing
        is off or ``keep`` is False (the KV was never computed)."""
        if not context.active:
            return
        if keep:
            self._publish(context, context.saved)
        self.pool.give(context.pages[context.shared :])
        self.tree.unlock(self._node(context))
        context.lock = None
        self._dropped.append(context.id)
        context.pages = ints()
        context.sent = context.shared = context.ready = context.saved = 0
        del self._active[context.id]

    def dropped(self) -> list[int]:
        """Return the ids of contexts released since the last call. The next pass makes the worker
        drop their page tables."""
        found, self._dropped = self._dropped, []
        return found

    def drop_again(self, contexts: Sequence[int]) -> None:
        """Return these ids once more from ``dropped``, since a pass that had them has failed. The
        contexts must still be idle."""
        self._dropped.extend(contexts)

    def flush(self, why: str = "flushed") -> int:
        """Drop all KV that no active context uses. Return the number of tokens dropped on the
        device. ``why``: "failed" after a failed pass: host memory then drops only copies of passes
        that were not collected; otherwise everything.
        """
        if self.host is not None:
            if why == "failed":
                self.host.failed()
            else:
                self.host.clear()
        return self.tree.clear(why) * self.page_size

    def disown(self, key: bytes) -> None:
        """Make the wrong KV of an image or video unreachable: contexts with it get new marks. None
        of these contexts may be active."""
        self.numbers.forget(key)
        for context in self.contexts.values():
            if any(medium.key == key for medium in context.media):
                length = len(context.head)
                context.head = marked(context.tokens, context.media, self.numbers)[:length]

    def drop_adapter(self, number: int) -> int:
        """Drop all KV of an adapter that no context uses. Return the number of tokens."""
        if self.host is not None:
            self.host.drop_adapter(number)
        gone = [space for space in self.tree.namespaces if space.adapter == number]
        return sum(self.tree.drop(space) for space in gone) * self.page_size

    def retell(self, watcher: TreeWatcher) -> None:
        """Report every edge of the device's tree to a watcher."""
        retell(self.tree, watcher)

    @property
    def counts(self) -> dict[str, int]:
        """Gauges and counters by name: contexts, tokens of device memory and of host memory.
        ``EngineStats.loaded_tokens`` counts the tokens copied from host memory."""
        host, size = self.host, self.page_size
        counts = {
            "contexts": len(self.contexts),
            "free_tokens": self.pool.free * size,
            "evictable_tokens": self.tree.evictable * size,
            "protected_tokens": self.protected * size,
            "total_tokens": self.pool.size * size,
            "evicted_tokens": self.tree.evicted * size,
        }
        if host is not None:
            counts |= {
                "host_tokens": host.tree.evictable * size,
                "host_total_tokens": host.tree.pool.size * size,
                "stored_tokens": host.saved * size,
            }
        return counts

    # -- auditing --------------------------------------------------------------------------------

    def check(self) -> None:
        """Raise AssertionError if a page is lost or owned twice, or a watermark is out of order."""
        if self.host is not None:
            self.host.check()
        owned = ints()
        locks: dict[int, int] = {}
        for context in self.contexts.values():
            assert 0 <= context.ready <= context.saved <= len(context.tokens), "watermarks"
            assert context.active == (context.id in self._active), "active set"
            assert context.sent <= len(context.pages), "the worker has pages that are gone"
            assert len(context.head) <= len(context.tokens), "marks behind the tokens"
            if not context.active:
                assert not context.pages, "an idle context holds pages"
                assert not context.saved, "an idle context claims KV"
                continue
            assert context.saved <= len(context.pages) * self.page_size, "KV without a page"
            owned.extend(context.pages[context.shared :])
            shared = ints()
            root = self._node(context)
            step: RadixNode | None = root
            while step is not None:
                root = step
                locks[step.number] = locks.get(step.number, 0) + 1
                shared = step.pages + shared
                step = step.parent
            assert root is self.tree.root(context.namespace), "KV of another namespace"
            assert shared == context.pages[: context.shared], "locked path and page table differ"
        if self.holder is not None:
            owned.extend(self.holder.check())
            for number in self.holder.locks():
                locks[number] = locks.get(number, 0) + 1
        owned.extend(self.tree.check(locks))
        self.pool.check(owned)
        assert self.pool.free + self.tree.evictable + self.protected == self.pool.size

    @property
    def protected(self) -> int:
        """Number of pages in use by active contexts (shared and own) and by ``holder``."""
        own = sum(len(c.pages) - c.shared for c in self._active.values())
        return self.tree.protected + own + (0 if self.holder is None else self.holder.held)

    # -- inside ----------------------------------------------------------------------------------

    def _add(self, context: Context) -> Context:
        if context.id in self.contexts:
            raise ValueError(f"context {context.id} is open already")
        self.contexts[context.id] = context
        return context

    def _save(self, node: RadixNode) -> None:
        """Plan a copy to host memory of the path to a leaf that is about to be evicted.

        Earlier passes have computed this KV: a request with a row in the planned pass keeps its
        path locked (``Item.fixed``), and KV that the pass loads is in host memory already.
        """
        transfer, host = self.transfer, self.host
        if transfer is not None and transfer.storable and host is not None and host.takes(node):
            self._copy(node, transfer.storable)

    def copy(self, node: RadixNode, unbounded: bool = False) -> None:
        """Plan a copy to host memory of the path to a leaf, within the budget of the planned pass
        unless ``unbounded``. The planned pass must have no rows yet."""
        if self.host is not None and self.transfer is not None:
            self._copy(node, self.pool.size if unbounded else self.transfer.storable)

    def lacking(self, node: RadixNode) -> int:
        """Return for how many tokens of the path to a leaf host memory has no KV."""
        tokens, _ = self.tree.path(node)
        if self.host is None:
            return len(tokens)
        return len(tokens) - self.host.match(tokens, len(tokens), self.tree.namespace(node))

    def _copy(self, node: RadixNode, most: int) -> None:
        """Plan a copy to host memory of the path to a leaf, at most ``most`` pages."""
        assert self.host is not None
        assert self.transfer is not None
        tokens, pages = self.tree.path(node)
        self.transfer.store(self.host.save(tokens, pages, self.tree.namespace(node), most))

    def _node(self, context: Context) -> RadixNode:
        return cast(RadixNode, context.lock)

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self.page_size)

    def _publish(self, context: Context, length: int, planned: bool = False) -> None:
        """Move the full pages of the first ``length`` tokens into the tree. Pages whose KV the
        tree has already are freed. A pass in flight may still write the freed pages; their next
        owner writes them in a later pass.

        ``planned``: the pass that is being planned writes these pages. Freed, they might go to
        another row of the same pass. So if the tree has some of this KV, the pages stay the
        context's own until its release.
        """
        full = min(length, context.saved) // self.page_size
        if not self.share or not context.active or full <= context.shared:
            return
        start, key = context.shared * self.page_size, context.key
        if planned and self.tree.continues(self._node(context), key, start):
            return
        node, pages, spare = self.tree.publish(
            self._node(context), key, start, context.pages[context.shared : full]
        )
        self.pool.give(spare)
        if context.sent > context.shared and pages != context.pages[context.shared : full]:
            context.sent = context.shared
        context.pages[context.shared : full] = pages
        context.shared = full
        context.lock = node
