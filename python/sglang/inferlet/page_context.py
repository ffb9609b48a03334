"""PageContext: a text whose KV a program holds, page by page or as a whole (Pie, section 6.3).

The KV of its last token is computed when what follows is needed, so a fork can go on at once.
"""

from __future__ import annotations

import asyncio
import random
from array import array
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

from sglang.inferlet.block_pages import BlockPages
from sglang.inferlet.ctx import Ctx
from sglang.inferlet.dist import Dist
from sglang.inferlet.samplers import Sampler, Stop

SPARE = 16  # pages that are allocated at a time
TOP = 256
WHOLE = -2  # tokens of a distribution: all
AHEAD = 1  # forwards that a straight loop requests beyond the one whose token it reads


class PageContext:
    """A text with pages of its own; some may be shared with forks of it.

    Attributes:
        tokens: the whole text.
        computed: number of tokens whose KV stands.
    """

    def __init__(self, ctx: Ctx, queue: int | None = None, start: int = 0) -> None:
        """``queue``: of its calls; without it a new one. ``start``: position of its first token."""
        self.ctx, self.queue = ctx, ctx.create_queue() if queue is None else queue
        self.start = start
        self.tokens: list[int] = []
        self.computed = 0
        self._blocks = BlockPages()  # page of each block of page_size tokens that has one
        self._holders: Counter[int] = Counter()  # contexts that use a page, of this and its forks
        self._fixed: set[int] = set()  # pages that were exported, imported or come from the cache
        self._spare: list[int] = []
        self._embs: list[int] = []
        self._dist: Dist | None = None  # after the last token, where that is computed
        self._chance: random.Random | None = None  # of this text's samples alone
        self._numbers: deque[float] = deque()  # random numbers whose tokens were given up

    # Text.

    async def fill(self, text: str) -> PageContext:
        """Append a text; the first one gets the tokens that a prompt begins with."""
        self.extend(await self.ctx.tokenize(text, special=not self.tokens))
        return self

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens. Raises ValueError where the model's context is too short."""
        total = self.start + len(self.tokens) + len(tokens)
        if total > self.ctx.context_length:
            raise ValueError(
                f"the text would have {total} tokens; at most {self.ctx.context_length}"
            )
        self.tokens += tokens
        if tokens:
            self._dist = None

    async def text(self, start: int = 0) -> str:
        """The text of the tokens from ``start`` on."""
        return await self.ctx.detokenize(self.tokens[start:])

    # Generation.

    async def next_dist(self, k: int = TOP, probe: Sequence[int] = ()) -> Dist:
        """The distribution after the text."""
        wanted = self.ctx.vocab_size if k == WHOLE else k
        if self._dist is None or len(self._dist) < wanted or probe:
            self._reopen()
            self._dist = (await self.next_dists((), k, probe))[0]
        return self._dist

    async def next_dists(
        self, drafts: Sequence[int], k: int = 1, probe: Sequence[int] = ()
    ) -> list[Dist]:
        """The distributions after the text, and after the text with each more of ``drafts``, in
        one pass. The drafts belong to the text from now on; ``cut`` removes those that are wrong.
        """
        self.extend(drafts)
        count = len(self.tokens) - self.computed
        embs = self._inputs(count)
        outputs = embs[count - len(drafts) - 1 : count]
        self._forward(embs, outputs)
        if len(outputs) == 1:
            return [await self.ctx.get_next_dist(self.queue, outputs[0], k, probe)]
        asked = [self.ctx.get_next_dist(self.queue, emb, k, probe) for emb in outputs]
        return list(await asyncio.gather(*asked))

    async def sample(self, params: dict[str, Any], history: Sequence[int] = ()) -> int:
        """A token after the text, which the engine samples; it is not appended. ``params``: as of
        ``/generate``."""
        self._reopen()
        embs = self._inputs(len(self.tokens) - self.computed)
        view, okv = self._places(len(embs))
        more: dict[str, Any] = {"history": list(history)} if history else {}
        return await self.ctx.forward_with_sampling(
            self.queue, params, view, embs, okv, uniform=self._number(), **more
        )

    def _reopen(self) -> None:
        """Have the last token computed with what follows. Raise ValueError where there is none."""
        if not self.tokens:
            raise ValueError("the text is empty; begin it by fill or extend")
        if self.computed == len(self.tokens):
            self.forget(self.computed - 1)

    def _number(self) -> float:
        """The next random number, in [0, 1)."""
        if self._numbers:
            return self._numbers.popleft()
        if self._chance is None:
            self._chance = random.Random(random.getrandbits(64))
        return self._chance.random()

    async def run_ahead(
        self,
        count: int,
        params: dict[str, Any],
        ends: Collection[int] | None = None,
        ahead: int = AHEAD,
    ) -> list[int]:
        """Append ``count`` tokens that the engine samples, fewer where one is in ``ends`` (None:
        the end tokens of the model), which is left out; the new tokens.

        Each forward is requested before the token that it begins with is read, at most ``ahead``
        of them at a time: the engine need not wait for the program. The tokens are those of
        ``sample`` one by one. What was computed beyond an end is given up.
        """
        if count <= 0:
            return []
        ends = self.ctx.eos if ends is None else ends
        start = len(self.tokens)
        self._reopen()
        embs = self._inputs(start - self.computed)
        asked: deque[tuple[float, Awaitable[int]]] = deque()
        last = min(count, self.ctx.context_length - self.start - start + 1) - 1
        sent = 0
        try:
            for read in range(count):
                while sent <= min(read + ahead, last):
                    view, okv = self._places(len(embs))
                    number = self._number()
                    more: dict[str, Any] = {"future": embs[0]} if sent < last else {}
                    token = self.ctx.forward_with_sampling(
                        self.queue, params, view, embs, okv, uniform=number, **more
                    )
                    asked.append((number, token))
                    embs, sent = embs[:1], sent + 1
                found = await asked.popleft()[1]
                if found in ends:
                    break
                self.extend([found])
        finally:
            for number, token in reversed(asked):
                self._numbers.appendleft(number)
                asyncio.ensure_future(token).add_done_callback(_given_up)
            if self.computed > len(self.tokens):
                self.forget(len(self.tokens))
        return self.tokens[start:]

    async def generate_until(
        self,
        max_tokens: int = 128,
        stop: Stop | None = None,
        sampler: Sampler | None = None,
        temperature: float = 0.0,
    ) -> str:
        """Append tokens until an end token, ``stop`` or ``max_tokens``; their text.

        ``sampler`` takes each token from a distribution in the program; without one the engine
        samples at ``temperature``. ``stop`` (``samplers``) is awaited with this context and the
        index of the first new token. Without both, tokens are requested by ``run_ahead``.
        """
        start = len(self.tokens)
        params = {"temperature": temperature}
        if sampler is None and stop is None:
            await self.run_ahead(max_tokens, params)
            return await self.text(start)
        for _ in range(max_tokens):
            if sampler is not None:
                token = sampler(await self.next_dist())
            else:
                token = await self.sample(params)
            if token in self.ctx.eos:
                break
            self.extend([token])
            if stop is not None and await stop(self, start):
                break
        return await self.text(start)

    async def flush(
        self, sees: Callable[[int, int], bool] | None = None, last: bool = False
    ) -> None:
        """Compute the KV of all tokens but the last, or of that too, without waiting for it.

        ``sees(i, j)``: whether token ``i`` sees token ``j`` before it; None: it sees all that have
        pages.
        """
        count = len(self.tokens) - self.computed - (not last)
        if count <= 0:
            return
        mask = None
        if sees is not None:
            new = range(self.computed, self.computed + count)
            mask = [[sees(i, j) for j in [*self._seen(), *new]] for i in new]
        embs = self._inputs(count)
        self._forward(embs, (), mask)

    def _seen(self) -> list[int]:
        """Indices of the tokens whose KV the next forward sees."""
        size = self.ctx.page_size
        return [
            index
            for block in self._blocks
            for index in range(block * size, min(block * size + size, self.computed))
        ]

    # Pages.

    async def fork(self, count: int = 1) -> list[PageContext]:
        """Texts that begin with this one, whose pages they share."""
        await self.flush()
        return [self._child() for _ in range(count)]

    def _child(self) -> PageContext:
        child = PageContext(self.ctx, start=self.start)
        child.tokens, child.computed = list(self.tokens), self.computed
        child._holders, child._fixed, child._dist = self._holders, self._fixed, self._dist
        child._blocks = BlockPages(self._blocks)
        self._holders.update(child._blocks.values())
        return child

    async def join(self, *others: PageContext, since: int) -> None:
        """Append what the forks have generated after token ``since``, in order, and free them."""
        for other in others:
            self.extend(other.tokens[since:])
            await other.free()

    def cut(self, length: int) -> None:
        """Remove the tokens from ``length`` on. Raises ValueError as ``forget`` does."""
        self.forget(length)
        del self.tokens[length:]
        self._dist = None

    def edit(self, start: int, end: int, tokens: Sequence[int]) -> None:
        """Put ``tokens`` in place of those from ``start`` to ``end``. It is exact: the KV before
        the first token that changes stays, what follows is computed again when it is needed.
        Raises ValueError where the model's context is too short, or the text has no such tokens."""
        if not 0 <= start <= end <= len(self.tokens):
            raise ValueError(
                f"tokens {start} to {end} are to be replaced; the text has {len(self.tokens)}"
            )
        old, tail = self.tokens[start:end], self.tokens[end:]
        new = [*tokens, *tail]
        same = 0
        while same < min(len(old), len(tokens)) and old[same] == tokens[same]:
            same += 1
        if self.start + start + len(new) > self.ctx.context_length:
            raise ValueError(
                f"the text would have {self.start + start + len(new)} tokens; at most "
                f"{self.ctx.context_length}"
            )
        if same == len(old) == len(tokens):
            return
        self.cut(start + same)
        self.extend(new[same:])

    def forget(self, length: int) -> None:
        """Give up the KV of the tokens from ``length`` on; they are computed again. Raises
        ValueError where ``length`` is below 0, or inside of a page that was dropped or skipped."""
        if length < 0:
            raise ValueError(f"length is {length}; give at least 0")
        size = self.ctx.page_size
        self._verify_page(length)
        for block in [one for one in self._blocks if (one + 1) * size > length]:
            kept = max(0, length - block * size)
            page = self._blocks[block]
            if not kept:
                del self._blocks[block]
                self._release([page], spare=True)
            elif self._writable(page):
                self.ctx.mask_kvpage(self.queue, page, [i < kept for i in range(size)])
            else:
                self._blocks[block] = self._copy(page, kept)
                self._release([page])
        self.computed = min(self.computed, length)
        self._dist = None

    def _verify_page(self, length: int) -> None:
        """Raise ValueError where the KV of the tokens before ``length`` is to stay, and is in a
        page that is gone."""
        size = self.ctx.page_size
        block, offset = divmod(length, size)
        if offset and 0 < length < self.computed and block not in self._blocks:
            raise ValueError(
                f"the KV of tokens {block * size} to {length - 1} was dropped or skipped, so the "
                f"text cannot go on after {length} tokens; it can after {block * size}"
            )

    def drop(self, start: int, end: int) -> int:
        """Free the pages of the tokens from ``start`` to ``end``, which stay in the text but are
        seen no more; positions stay. Only whole pages whose KV is computed; the number that was
        freed."""
        size, end = self.ctx.page_size, min(end, self.computed)
        blocks = [b for b in self._blocks if b * size >= start and (b + 1) * size <= end]
        self._release([self._blocks.pop(block) for block in blocks])
        return len(blocks)

    async def save(self, name: str) -> list[int]:
        """Export the whole pages of the text under a name; their tokens. Raises ValueError where
        some were dropped or skipped."""
        await self.flush(last=True)
        whole = self.computed // self.ctx.page_size
        if gone := [block for block in range(whole) if block not in self._blocks]:
            raise ValueError(
                f"{len(gone)} of the text's {whole} pages were dropped or skipped, the first of "
                f"them page {gone[0]}; an export holds the whole text"
            )
        pages = [self._blocks[block] for block in range(whole)]
        self.ctx.export_kvpage(self.queue, pages, name)
        self._fixed.update(pages)
        await self.ctx.synchronize(self.queue)
        return self.tokens[: whole * self.ctx.page_size]

    async def load(self, name: str, tokens: Sequence[int]) -> PageContext:
        """Append the pages of an export, whose tokens these are."""
        most = len(tokens) // self.ctx.page_size
        return self.adopt(await self.ctx.import_kvpage(self.queue, name, most), tokens)

    async def cached(self, tokens: Sequence[int]) -> PageContext:
        """Begin an empty text with the pages of the prefix cache, which computes what it lacks."""
        pages = await self.ctx.prefix(self.queue, tokens[:-1])
        self.adopt(pages, tokens[: len(pages) * self.ctx.page_size])
        self.extend(tokens[len(self.tokens) :])
        return self

    def adopt(self, pages: Sequence[int], tokens: Sequence[int]) -> PageContext:
        """Append read-only pages that hold the KV of these tokens, computed at their positions."""
        size = self.ctx.page_size
        block, offset = divmod(self.computed, size)
        if self.computed != len(self.tokens) or offset or len(pages) * size != len(tokens):
            raise ValueError(
                f"{len(pages)} pages hold {len(pages) * size} tokens and {len(tokens)} are given, "
                f"after {self.computed} of {len(self.tokens)} tokens; begin after whole pages"
            )
        self.extend(tokens)
        self.computed = len(self.tokens)
        self._blocks.update(enumerate(pages, block))
        self._holders.update(pages)
        self._fixed.update(pages)
        return self

    def skip(self, tokens: Sequence[int]) -> PageContext:
        """Append tokens that have positions and are not seen. Raises ValueError where the tokens
        before are not computed."""
        if self.computed != len(self.tokens) or len(tokens) % self.ctx.page_size:
            raise ValueError("tokens are skipped after computed ones, and a whole page at a time")
        self.extend(tokens)
        self.computed = len(self.tokens)
        return self

    async def free(self) -> None:
        """Give all pages back."""
        self._release(list(self._blocks.values()))
        self._blocks = BlockPages()
        self._free(self._spare)
        self.ctx.dealloc_emb(self.queue, self._embs)
        self._spare, self._embs, self.computed = [], [], 0

    @property
    def pages(self) -> list[int]:
        """The pages that the next forward sees, in order."""
        return list(self._blocks.values())

    # Forwards.

    def _inputs(self, count: int) -> list[int]:
        """Embeddings with the next ``count`` tokens that are to be computed."""
        if count > len(self._embs):
            self._embs += self.ctx.alloc_emb(self.queue, count - len(self._embs))
        tokens = self.tokens[self.computed : self.computed + count]
        positions = range(self.start + self.computed, self.start + self.computed + count)
        embs = self._embs[:count]
        self.ctx.embed_txt(self.queue, tokens, positions, embs)
        return embs

    def _forward(
        self, embs: Sequence[int], outputs: Sequence[int], mask: list[list[bool]] | None = None
    ) -> None:
        view, okv = self._places(len(embs))
        self.ctx.forward(self.queue, view, embs, okv, outputs, mask)

    def _places(self, count: int) -> tuple[array[int], list[int]]:
        """Pages that the next ``count`` tokens see, and those that their KV is written to."""
        size = self.ctx.page_size
        block, offset = divmod(self.computed, size)
        if offset and not self._writable(self._blocks[block]):
            old = self._blocks[block]
            self._blocks[block] = self._copy(old, offset)
            self._release([old])
        view = self._blocks.listed()
        last = (self.computed + count - 1) // size
        new = range(block + bool(offset), last + 1)
        if len(new) > len(self._spare):
            wanted = len(new) - len(self._spare) + SPARE // size
            self._spare += self.ctx.alloc_kvpage(self.queue, wanted)
        okv = [self._blocks[block]] if offset else []
        for one in new:
            page = self._spare.pop(0)
            self._blocks[one] = page
            self._holders[page] = 1
            okv.append(page)
        self.computed += count
        return view, okv

    def _writable(self, page: int) -> bool:
        return self._holders[page] == 1 and page not in self._fixed

    def _copy(self, page: int, count: int) -> int:
        """A page of this text alone with the first slots of another."""
        [own] = self.ctx.alloc_kvpage(self.queue, 1)
        size = self.ctx.page_size
        slots = range(count)
        self.ctx.copy_kvpage(
            self.queue, [page * size + i for i in slots], [own * size + i for i in slots]
        )
        self._holders[own] = 1
        return own

    def _release(self, pages: list[int], spare: bool = False) -> None:
        """Use pages no more; those that no fork uses are freed, or kept as ``spare``."""
        gone = []
        for page in pages:
            self._holders[page] -= 1
            if not self._holders[page]:
                del self._holders[page]
                gone.append(page)
        if spare:
            for page in [one for one in gone if one not in self._fixed]:
                self.ctx.mask_kvpage(self.queue, page, [False] * self.ctx.page_size)
                self._spare.insert(0, page)
                gone.remove(page)
        self._free(gone)

    def _free(self, pages: list[int]) -> None:
        if pages:
            self.ctx.dealloc_kvpage(self.queue, pages)
            self._fixed.difference_update(pages)


def _given_up(token: asyncio.Future[int]) -> None:
    """A token that nothing waits for: a refusal of it is no fault of the program."""
    if not token.cancelled():
        token.exception()
