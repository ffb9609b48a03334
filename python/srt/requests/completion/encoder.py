"""Encoder: encodes the texts of all requests to token ids, with bounded memory.

Tokenizing temporarily takes 150 to 420 bytes of memory for each byte of a text. So a long text is
tokenized in pieces, if its tokenizer allows that. The number of bytes that are tokenized at once is
bounded over all requests. Further pieces wait in a first-in, first-out queue. A request is refused
if the queue is too long.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

from sglang.srt.core.ints import Ints, ints
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import LONG, Tokenizer

SMALL = 64 << 10  # bytes up to which a text never queues: asyncio's few threads are limit enough
MOST = 4 << 20  # default for the bytes that are tokenized at once
WAITING = 8  # the queue may have this many times the bytes that are tokenized at once

P = ParamSpec("P")
T = TypeVar("T")


class Encoder:
    """Encoder of one event loop.

    Attributes:
        held: bytes that are being tokenized. waiting: bytes in the queue.
    """

    def __init__(self, tokenizer: Tokenizer, most: int = MOST) -> None:
        self._tokenizer, self._most = tokenizer, most
        self.held = self.waiting = 0
        self._queue: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def encode(self, text: str, add_special_tokens: bool = True) -> Ints:
        """Return the ids of a text. Raises RequestError for invalid Unicode, and that of ``run``.

        Long texts are tokenized in threads. Each short text first yields to the event loop.
        """
        try:
            if len(text) < LONG:
                await asyncio.sleep(0)
                return self._tokenizer.encode(text, add_special_tokens)
            found, encode = ints(), self._tokenizer.encode_piece
            for piece in self._tokenizer.pieces(text):
                found += await self.run(bytes_of(piece), encode, piece)
            return self._tokenizer.framed(found) if add_special_tokens else found
        except RequestError:
            raise
        except ValueError as error:
            raise RequestError(f"The prompt cannot be tokenized: {error}.", "prompt") from error

    async def encode_pieces(self, texts: Sequence[str]) -> list[Ints]:
        """Return the ids of each text, encoded separately. The texts have about ``SMALL`` bytes
        together, or are one longer text. Raises the errors of ``encode``."""
        try:
            size = sum(map(bytes_of, texts))
            return await self.run(size, self._tokenizer.encode_pieces, texts)
        except ValueError as error:
            raise RequestError(f"The text cannot be tokenized: {error}.", "text") from error

    async def encode_behind(self, text: str) -> Ints:
        """Return the ids of a text that continues another text, whose ids are known already. Raises
        the errors of ``encode``."""
        try:
            if len(text) < LONG:
                await asyncio.sleep(0)
                return self._tokenizer.encode_behind(text)
            found, encode = ints(), self._tokenizer.encode_behind
            for piece in self._tokenizer.pieces(text):
                found += await self.run(bytes_of(piece), encode, piece)
            return found
        except RequestError:
            raise
        except ValueError as error:
            raise RequestError(f"The text cannot be tokenized: {error}.", "text") from error

    async def run(self, size: int, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run ``work``, which tokenizes ``size`` bytes, in a thread, and return its result.

        Raises RequestError if there are too many bytes, in one piece (400) or at present (503).
        """
        if size <= SMALL:
            return await asyncio.to_thread(work, *args, **kwargs)
        await self._enter(size)
        task = asyncio.ensure_future(asyncio.to_thread(work, *args, **kwargs))
        # The thread of a cancelled request continues, and keeps its memory until it ends.
        task.add_done_callback(lambda done: self._leave(size, done))
        return await asyncio.shield(task)

    async def _enter(self, size: int) -> None:
        """Wait until ``size`` bytes are counted as held. Raises RequestError."""
        if size > self._most:
            raise RequestError(
                f"The text has {size} bytes in which it cannot be cut; at most {self._most} are "
                "tokenized at once (--max-tokenized-bytes); send it in parts.",
                "prompt",
            )
        if not self._queue and self.held + size <= self._most:
            self.held += size
            return
        if self.waiting + size > WAITING * self._most:
            raise RequestError(
                f"Texts of {self.waiting} bytes wait to be tokenized, and {WAITING * self._most} "
                "may (--max-tokenized-bytes, eight times); try again later.",
                "prompt",
                "overloaded",
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append((size, turn))
        self.waiting += size
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._admit()
            else:  # the turn came in the same step of the loop
                self._leave(size)
            raise

    def _leave(self, size: int, done: asyncio.Future[Any] | None = None) -> None:
        self.held -= size
        self._admit()
        if done is not None and not done.cancelled():
            done.exception()  # marks the exception as retrieved, as the caller may be cancelled

    def _admit(self) -> None:
        """Drop cancelled waiters, and admit waiters while the first one fits."""
        gone = [entry for entry in self._queue if entry[1].cancelled()]
        if gone:
            self._queue = deque(entry for entry in self._queue if not entry[1].cancelled())
            self.waiting -= sum(size for size, _ in gone)
        while self._queue and self.held + self._queue[0][0] <= self._most:
            size, turn = self._queue.popleft()
            self.waiting -= size
            self.held += size
            turn.set_result(None)


def bytes_of(text: str) -> int:
    """Return the length of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
