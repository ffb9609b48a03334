"""TreeScores: log-probabilities of many texts after one prompt, by forwards of a space.

    OpenSpace, PrefixPages (the prompt without its last token), ForwardTokens ..., CloseSpace

Each forward has a tree of the texts' tokens (``token_tree``), whose KV is not kept. The results are
the same as those of a separate request for each text.
"""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.space_messages import (
    CloseSpace,
    ForwardDone,
    ForwardTokens,
    OpenSpace,
    PrefixPages,
    SpaceEnded,
    SpaceEvent,
    SpaceFailed,
    SpaceReply,
)
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.engine.info import EngineInfo
from sglang.srt.requests.completion.token_tree import TreeForward, most_tokens, tree_forwards

AT_ONCE = 1  # simultaneous tree forwards in an engine, over all requests
INLINE = 1 << 12  # tokens up to which trees are built on the event loop: some milliseconds
PREFIX = 0  # request number of PrefixPages; forwards have the following numbers

Row = list[float | None]
_TURNS: WeakKeyDictionary[Client, asyncio.Semaphore] = WeakKeyDictionary()


class NoTree(Exception):
    """The engine cannot score these rows as trees, so they must be scored by separate requests."""


def verify_trees(info: EngineInfo) -> None:
    """Raise NoTree for pages of several tokens, or a model with a sliding window."""
    if info.page_size > 1:
        raise NoTree(f"pages have {info.page_size} tokens")
    if info.windowed:
        raise NoTree("the model has layers with a sliding window")


class TreeScores:
    """One space for the trees of one request. The caller must close it in any case.

    Args:
        owner: tenant of the request.
        prompt: token ids before all rows; may be empty.
    """

    def __init__(
        self, client: Client, prompt: Ints, namespace: str, adapter: str, priority: int, owner: str
    ) -> None:
        self._client, self._prompt, self._number = client, prompt, client.new_id()
        self._waiting: dict[int, asyncio.Future[ForwardDone | None]] = {}
        self._requests = PREFIX
        self._failure: Exception | None = None
        self._opening = OpenSpace(self._number, namespace, adapter, priority, owner)
        self.computed = 0  # tokens

    async def score(self, rows: Sequence[list[int]]) -> list[Row]:
        """Return the log-probability of each token of each row. Rows have at least one token.
        Without a prompt, a row's first token has None.

        Raises NoTree, and EngineLost.
        """
        info, depth = self._client.info, len(self._prompt)
        visible = max(depth - 1, 0)
        most = min(most_tokens(visible, info.context_length), info.capacity // (4 * AT_ONCE))
        root = self._prompt[-1] if depth else -1
        try:
            forwards = await _made(rows, root, depth, most)
        except ValueError as error:
            raise NoTree(str(error)) from error
        self._client.listen(self._number, self._take)
        self._client.send(self._opening)
        if visible:
            tokens = self._prompt[:visible].tobytes()
            self._client.send(PrefixPages(self._number, PREFIX, tokens, 0))
            await self._answer(PREFIX)
        found: list[Row] = [[] if depth else [None] for _ in rows]
        slots = ints(range(visible)).tobytes()
        for forward in forwards:
            async with _turns(self._client):
                self._verify_alive()
                done = await self._answer(self._begin(forward, visible, slots))
            assert done is not None
            for number, values in forward.take(array("f", done.probe)):
                found[number] += values
        return found

    def _begin(self, forward: TreeForward, visible: int, slots: bytes) -> int:
        """Send a forward, and return its request number."""
        self._requests += 1
        self.computed += len(forward.tokens)
        verb = ForwardTokens(
            self._number, self._requests, forward.tokens.tobytes(), forward.positions.tobytes(),
            slots, mask=forward.mask(visible), targets=forward.pairs().tobytes(),
        )  # fmt: skip
        self._client.send(verb)
        self._expect(self._requests)
        return self._requests

    def _expect(self, request: int) -> asyncio.Future[ForwardDone | None]:
        loop = asyncio.get_running_loop()
        return self._waiting.setdefault(request, loop.create_future())

    async def _answer(self, request: int) -> ForwardDone | None:
        """Wait for the answer to a request and return it. Raises NoTree and EngineLost."""
        self._verify_alive()
        try:
            return await self._expect(request)
        finally:
            self._waiting.pop(request, None)

    def _verify_alive(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _take(self, event: SpaceEvent) -> None:
        if isinstance(event, ForwardDone):
            self._settle(event.request, event)
        elif isinstance(event, SpaceReply):
            self._settle(event.request, None)
        elif isinstance(event, SpaceEnded) and event.code == "lost":
            self._fail(EngineLost(event.message))
        elif isinstance(event, SpaceFailed | SpaceEnded):
            self._fail(NoTree(event.message))

    def _settle(self, request: int, answer: ForwardDone | None) -> None:
        future = self._waiting.get(request)
        if future is not None and not future.done():
            future.set_result(answer)

    def _fail(self, error: Exception) -> None:
        self._failure = error
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks the error as retrieved, as no task may await it

    def abort(self) -> None:
        """End the scoring; ``score`` then raises NoTree."""
        self._fail(NoTree("the request was aborted"))

    def close(self) -> None:
        """Close the space; pending forwards are dropped."""
        self._client.unlisten(self._number)
        for future in self._waiting.values():
            future.cancel()
        with suppress(EngineLost):
            self._client.send(CloseSpace(self._number))


def _turns(client: Client) -> asyncio.Semaphore:
    """Return the semaphore that each tree forward of a client holds. Forwards of all its requests
    take turns, in the order of their arrival."""
    if client not in _TURNS:
        _TURNS[client] = asyncio.Semaphore(AT_ONCE)
    return _TURNS[client]


async def _made(rows: Sequence[list[int]], root: int, depth: int, most: int) -> list[TreeForward]:
    """Build the forwards of the rows, in a thread if there are many tokens. Raises ValueError."""
    if sum(map(len, rows)) <= INLINE:
        return tree_forwards(rows, root, depth, most)
    return await asyncio.to_thread(tree_forwards, rows, root, depth, most)
