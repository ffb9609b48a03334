"""Inferlets on an Engine: trusted programs that run in this process.

sglang inferlet run file.py -- argument
engine.inferlet(main, "argument").result()
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from sglang.errors import BackendError
from sglang.inferlet.ctx import Ctx
from sglang.inferlet.turns import Turns

if TYPE_CHECKING:
    from sglang.srt.engine.client import Client
    from sglang.srt.inferlet.controller import Controller
    from sglang.srt.inferlet.driver import CallAnswer, Facts
    from sglang.srt.inferlet.inferlet_session import InferletSession
    from sglang.srt.inferlet.program_limits import Rights
    from sglang.srt.tokenizer import Tokenizer

Main = Callable[[Ctx], Awaitable[Any]]


class InferletError(BackendError):
    """A program has ended with an exception; the message is its traceback."""


class TrustedDriver:
    """A program of this process, whose turns are function calls."""

    def __init__(self, main: Main, facts: Facts) -> None:
        self._turns = Turns()
        ctx = Ctx(self._turns, facts.plain())
        self._first: Callable[[], Any] | None = lambda: self._turns.start(lambda: main(ctx))

    def turn(self, answers: list[CallAnswer]) -> list[Any]:
        from sglang.srt.inferlet.call_reading import read_turn
        from sglang.srt.inferlet.driver import plain

        if self._first is not None:
            first, self._first = self._first, None
            made = first()
        else:
            made = self._turns.turn([plain(answer) for answer in answers])
        return read_turn(made)

    def close(self) -> None:
        """Nothing runs between turns."""


class Inferlet:
    """A program that runs. Thread-safe.

    Attributes:
        messages: texts and bytes that it has sent, in order.
        lines: of its log.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._session: InferletSession | None = None
        self._future: Future[Any] = Future()
        self._news = threading.Condition()
        self.messages: list[str | bytes] = []
        self.lines: list[str] = []

    def result(self, timeout: float | None = None) -> Any:
        """The value that the program returned. Raises InferletError, TimeoutError."""
        return self._future.result(timeout)

    async def wait(self) -> Any:
        """``result`` for a running event loop."""
        return await asyncio.wrap_future(self._future)

    def send(self, message: str | bytes) -> None:
        """Send a text or bytes to the program."""
        self._loop.call_soon_threadsafe(self._put, message)

    def receive(self, index: int, timeout: float | None = None) -> str | bytes:
        """The message of that index, once it has come. Raises TimeoutError, and IndexError where
        the program has ended without it."""
        with self._news:
            if not self._news.wait_for(
                lambda: len(self.messages) > index or self._future.done(), timeout
            ):
                raise TimeoutError(f"no message {index} within {timeout} s")
            if len(self.messages) > index:
                return self.messages[index]
        raise IndexError(f"the program has ended and sent {len(self.messages)} messages")

    def stop(self) -> None:
        """End the program; its result is an InferletError."""
        self._loop.call_soon_threadsafe(self._stop)

    def _open(
        self, controller: Controller, main: Main, arguments: Sequence[str], rights: Any
    ) -> None:
        from sglang.srt.inferlet.inferlet_run import InferletRun
        from sglang.srt.inferlet.program_limits import ProgramLimits
        from sglang.srt.inferlet.served import RunFollower

        follower = RunFollower(self._message, self.lines.append, self._end)
        session = self._session = controller.open(arguments, rights, ProgramLimits(), follower)
        InferletRun(controller, session, TrustedDriver(main, session.parts.facts)).start()

    def _put(self, message: str | bytes) -> None:
        if self._session is not None:
            self._session.mail_in(message)

    def _stop(self) -> None:
        if self._session is not None:
            self._session.stop("it was stopped")

    def _message(self, message: str | bytes) -> None:
        with self._news:
            self.messages.append(message)
            self._news.notify_all()

    def _end(self, error: str) -> None:
        assert self._session is not None
        with self._news:
            if error:
                self._future.set_exception(InferletError(error.rstrip()))
            else:
                self._future.set_result(self._session.parts.outcome.value)
            self._news.notify_all()


class Inferlets:
    """The programs of one Engine. ``complete`` answers a body of ``/generate``."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: Client,
        tokenizer: Tokenizer,
        complete: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]],
    ) -> None:
        self._loop = loop
        self._parts = client, tokenizer, complete
        self._controller: Controller | None = None

    def start(self, main: Main, arguments: Sequence[str], rights: Rights, policy: str) -> Inferlet:
        """Start a program on the engine's loop; the first one makes the controller."""
        inferlet = Inferlet(self._loop)

        async def begin() -> None:
            inferlet._open(self._made(policy), main, arguments, rights)

        asyncio.run_coroutine_threadsafe(begin(), self._loop).result()
        return inferlet

    def _made(self, policy: str) -> Controller:
        from sglang.srt.inferlet.controller import Controller
        from sglang.srt.inferlet.leases import Leases
        from sglang.srt.inferlet.served import Served

        if self._controller is None:
            client, tokenizer, complete = self._parts
            served = Served(client, client.info, tokenizer, Leases(complete))
            self._controller = Controller(served, policy)
        return self._controller

    def close(self) -> None:
        """End all programs. On the engine's loop."""
        if self._controller is not None:
            self._controller.close()
