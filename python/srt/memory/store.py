"""Store: all contexts and the memory behind them. The only code that changes a context.

    idle      no lock, no pages; what was computed lies in the radix tree, evictable
    active    a locked path (``shared`` leading pages) and pages of its own after it

Pages move from a context to the tree when a prefill chunk is planned (``advance(publish=True)``)
and when the context is released, never back. Passes run in the order they are planned, so KV that a
planned pass writes may be read by the rows of that same pass and of all later ones.
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
    """Holds pages of the pool, as contexts and the tree do: ``spaces.space_system``."""

    @property
    def held(self) -> int: ...
    @property
    def adapters(self) -> set[int]: ...
    def locks(self) -> Iterable[int]:
        """Numbers of the nodes of every path of the tree that it has locked."""
        ...

    def check(self) -> set[int]:
        """Return the pages held. Raises AssertionError where one is lost."""
        ...


AHEAD = 256  # tokens that are evicted at once where host memory keeps them


class Store:
    """Contexts by id, the page pool and the radix tree.

    Args:
        pages: size of the pool.
        page_size: tokens a page.
        share: False keeps no KV between requests and shares none (for comparison).
        clock: what the tree notes uses and evictions with.
        host_pages: pages of host memory for KV that leaves the device; 0: no such tier.

    Attributes:
        transfer: budget of the planned pass for copies to and from host memory, set by the planner;
            None before the first plan, and without such a tier.
        choose: which leaf goes first where some have claims; None where none has.
        holder: of pages that are neither contexts' nor the tree's; None where none is.
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
        self._redone: set[int] = set()  # pages of the tree that the planned pass writes again

    # -- contexts --------------------------------------------------------------------------------

    def open(
        self,
        number: int,
        tokens: Ints,
        namespace: Namespace = BASE,
        segments: Segments = (),
        media: Medias = (),
    ) -> Context:
        """Add a context of these tokens. Raises ValueError where the number is in use, or segments
        or media do not fit the tokens."""
        verify(segments, len(tokens), self.page_size)
        verify_media(media, len(tokens))
        context = Context(number, tokens, namespace, segments, media)
        context.head = marked(tokens, media, self.numbers)
        return self._add(context)

    def fork(self, context: Context, child: int, length: int) -> Context:
        """Open a context with the first ``length`` tokens, none of them a draft; their KV is in the
        tree."""
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
        """Cut to ``length`` tokens. A cut into the shared part of an active context releases it."""
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
        """Compute the last token again, into the page it has: the same keys and values."""
        context.saved = min(context.saved, len(context.tokens) - 1)
        context.ready = min(context.ready, context.saved)

    def writes_alone(self, context: Context) -> bool:
        """Note that the planned pass goes on with the context. Return whether no other row of it
        computes a token again (``redo``) into the same page."""
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
        """Pages that can be had now, by taking or by evicting."""
        return self.pool.free + self.tree.evictable

    def match(self, context: Context, limit: int) -> Match:
        """Return the prefix that ``acquire(context, limit)`` would lock, and how much after it
        ``load`` could copy. Changes nothing."""
        if not self.share:
            return Match(0, 0, ())
        key, space = context.key, context.namespace
        found, pins, path = self.tree.match(key, limit, space)
        saved = 0 if self.host is None else self.host.match(key, limit, space)
        return Match(found, pins, path, max(saved - found, 0))

    def miss(self, context: Context, limit: int) -> CacheMiss:
        """Explain why the cache holds no more of the context. To be called before ``acquire``."""
        if not self.share:
            return CacheMiss(0, limit)
        found = miss_of(self.tree, context.key, limit, context.namespace)
        if found.evicted and self.host is not None:
            self.host.missed(found, context.key, limit, context.namespace)
        return found

    def acquire(self, context: Context, limit: int) -> int:
        """Lock the longest cached prefix of at most ``limit`` tokens, for an idle context, or move
        an active one's lock further where the cache now holds more. Returns the tokens gained."""
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
        """Have the planned pass copy what host memory holds of ``tokens[saved:limit]``. Returns the
        number of tokens, which count as computed."""
        host, transfer = self.host, self.transfer
        most = transfer.loadable if transfer is not None else 0
        first = context.saved // self.page_size
        idle = not context.active  # a cut has released it
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
        """Return how many of ``tokens[saved:limit]`` host memory has."""
        if self.host is None:
            return 0
        return max(self.host.match(context.key, limit, context.namespace) - context.saved, 0)

    def grow(self, context: Context, count: int) -> bool:
        """Get pages for ``count`` tokens after ``saved``, evicting if need be. Return False where
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
            else:  # several at once: each walks the path to a leaf
                room = self.transfer.storable if self.transfer is not None else 0
                ahead = min(AHEAD // self.page_size, self.tree.evictable // 8, room)
                if self.choose is not None:  # claims give what the pass needs
                    taken = self.transfer.tokens if self.transfer is not None else 0
                    ahead = min(ahead, self._pages(taken))
                self.tree.evict(max(need - free, ahead), save=self._save, choose=self.choose)
        try:
            context.pages.extend(self.pool.take(need))
        except MemoryError:
            return False
        return True

    def take(self, count: int) -> Ints:
        """Take pages for ``holder``, evicting if need be. Raises MemoryError, taking none, where
        there are too few."""
        if self.pool.free < count <= self.available:
            self.tree.evict(count - self.pool.free, choose=self.choose)
        return self.pool.take(count)

    def advance(self, context: Context, count: int, publish: bool) -> None:
        """Note that a planned pass computes the next ``count`` tokens and brings the worker's page
        table up to date. ``publish`` shares their KV with other contexts."""
        context.sent = len(context.pages)
        context.saved += count
        context.ready = context.saved
        if publish:
            self._publish(context, context.saved, planned=True)

    def moves(self, number: int) -> PageMoves | None:
        """End the plan of pass ``number``. Return the pages that it copies."""
        self._redone.clear()
        return None if self.host is None else self.host.planned(number)

    def exclusive(self, context: Context) -> int:
        """Pages that releasing the context would make available."""
        own = len(context.pages) - context.shared
        return own + self.tree.exclusive(self._node(context)) if context.active else 0

    def release(self, context: Context, keep: bool = True) -> None:
        """Make a context idle, where it is not (a cut may have released it). Its KV stays in the
        tree, evictable, unless ``keep`` is False (it was never computed) or sharing is off."""
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
        """Contexts released since the last call. The next pass tells the worker to forget their
        page tables."""
        found, self._dropped = self._dropped, []
        return found

    def drop_again(self, contexts: Sequence[int]) -> None:
        """Name these once more: a pass that named them has failed. They must have been released
        since."""
        self._dropped.extend(contexts)

    def flush(self, why: str = "flushed") -> int:
        """Forget all KV that no active context uses. Returns the device's tokens forgotten.

        ``why``: "failed" after a failed pass. Host memory then forgets only copies of passes that
        were not collected; else it forgets everything.
        """
        if self.host is not None:
            if why == "failed":
                self.host.failed()
            else:
                self.host.clear()
        return self.tree.clear(why) * self.page_size

    def disown(self, key: bytes) -> None:
        """Forget the KV of an image or video, which is wrong. No context that has it may be
        active."""
        self.numbers.forget(key)
        for context in self.contexts.values():
            if any(medium.key == key for medium in context.media):
                length = len(context.head)
                context.head = marked(context.tokens, context.media, self.numbers)[:length]

    def drop_adapter(self, number: int) -> int:
        """Forget all KV of an adapter that no context has. Returns the number of tokens."""
        if self.host is not None:
            self.host.drop_adapter(number)
        gone = [space for space in self.tree.namespaces if space.adapter == number]
        return sum(self.tree.drop(space) for space in gone) * self.page_size

    def retell(self, watcher: TreeWatcher) -> None:
        """Show a watcher of the device's tree all that it holds."""
        retell(self.tree, watcher)

    @property
    def counts(self) -> dict[str, int]:
        """Contexts, and tokens of the device's memory and of host memory, by name.
        ``EngineStats.loaded_tokens`` has those copied from host memory."""
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
        """Raise AssertionError where a page is lost, owned twice or a watermark is out of order."""
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
        """Pages in use by active contexts, shared and own, and by ``holder``."""
        own = sum(len(c.pages) - c.shared for c in self._active.values())
        return self.tree.protected + own + (0 if self.holder is None else self.holder.held)

    # -- inside ----------------------------------------------------------------------------------

    def _add(self, context: Context) -> Context:
        if context.id in self.contexts:
            raise ValueError(f"context {context.id} is open already")
        self.contexts[context.id] = context
        return context

    def _save(self, node: RadixNode) -> None:
        """Have the planned pass copy the path to a leaf that is about to be evicted.

        Passes before the planned one have computed what is copied: a request with a row in the
        planned pass keeps its path locked (``Item.fixed``), and what the pass loads has its copy.
        """
        transfer, host = self.transfer, self.host
        if transfer is not None and transfer.storable and host is not None and host.takes(node):
            self._copy(node, transfer.storable)

    def copy(self, node: RadixNode, unbounded: bool = False) -> None:
        """Have the planned pass, which has no rows yet, copy the path to a leaf to host memory, as
        far as its budget goes or ``unbounded``."""
        if self.host is not None and self.transfer is not None:
            self._copy(node, self.pool.size if unbounded else self.transfer.storable)

    def lacking(self, node: RadixNode) -> int:
        """Return how many tokens of the path to a leaf host memory lacks."""
        tokens, _ = self.tree.path(node)
        if self.host is None:
            return len(tokens)
        return len(tokens) - self.host.match(tokens, len(tokens), self.tree.namespace(node))

    def _copy(self, node: RadixNode, most: int) -> None:
        """Copy the path to a leaf, at most ``most`` pages of it."""
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
        tree has already are freed, though a pass in flight may write them: their next owner
        writes in a later pass.

        Pages of the pass that is being planned cannot be exchanged for the tree's: another row of
        it might get them. Where the tree has some of that KV, the pages stay the context's own
        until its release.
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
