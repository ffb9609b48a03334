"""ApiBackend: base of the backends of paid services, which use the services' official clients.

A subclass opens the asynchronous client and makes each call inside ``calling``::

    class Service(ApiBackend):
        name = "Service"
        key_variable = "SERVICE_API_KEY"

        def open_client(self):          # called once for each event loop, at the first call
            return service.AsyncClient(max_retries=self.max_retries)

        async def acomplete(self, prompt, params):
            async with self.calling(prompt) as client:
                reply = await client.messages.create(**self.body(prompt, params))
                return self.completions(reply)          # may raise BadReply

Synchronous calls run the asynchronous ones on an event loop of the backend (``loop_thread``).

``calling`` holds one of ``max_concurrency`` slots, for a stream until it ends. It converts errors
of the client and of the reply to ``sglang.errors``: an HTTP status to its class, a timeout to
TimedOut, a lost connection to ConnectionFailed, BadReply and undecodable replies to BackendError,
each with the status, the request id and the end of the prompt, if known. ``sglang`` errors pass
unchanged. The client retries, with backoff and Retry-After."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

from sglang.backend.base import Backend, Completion, Prompt
from sglang.backend.loop_thread import LoopThread
from sglang.errors import (
    AuthenticationFailed,
    BackendError,
    ConnectionFailed,
    RateLimited,
    ServerFailed,
    SglangError,
    TimedOut,
    refusal,
)
from sglang.ir.choices import ChoicesMethod, Decision
from sglang.ir.params import GenParams

MAX_RETRIES = 3
TIMEOUT_SECONDS = 600.0
CONNECT_SECONDS = 5.0
MAX_CONCURRENCY = 64
TAIL_CHARACTERS = 80
REASON_CHARACTERS = 500


class BadReply(ValueError):
    """The service's reply violates its API. The message names the violation."""

    def __init__(self, message: str, request_id: str | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id


class NoAnswer(BadReply):
    """The model refused or did not reach its answer. The message gives the reason."""


class TokenUsage:
    """Tokens billed to a backend since its construction or ``reset``. Thread-safe."""

    def __init__(self) -> None:
        self.prompt_tokens = self.completion_tokens = 0
        self._lock = threading.Lock()

    def add(self, meta: Mapping[str, Any]) -> None:
        """Count a reply by its meta_info."""
        with self._lock:
            self.prompt_tokens += int(meta.get("prompt_tokens") or 0)
            self.completion_tokens += int(meta.get("completion_tokens") or 0)

    def reset(self) -> None:
        """Set the counters to 0."""
        with self._lock:
            self.prompt_tokens = self.completion_tokens = 0

    def __repr__(self) -> str:
        return (
            f"TokenUsage(prompt_tokens={self.prompt_tokens}, "
            f"completion_tokens={self.completion_tokens})"
        )


class Slots:
    """Semaphore for tasks of all event loops: at most ``limit`` holders at a time, in the order of
    their arrival."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"max_concurrency is {limit}; it is at least 1")
        self._free = limit
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold a slot inside the context."""
        turn = self._join()
        try:
            await asyncio.wrap_future(turn)
            yield
        finally:
            self._leave(turn)

    def _join(self) -> Future[None]:
        turn: Future[None] = Future()
        with self._lock:
            if self._free:
                self._free -= 1
                turn.set_result(None)
            else:
                self._waiting.append(turn)
        return turn

    def _leave(self, turn: Future[None]) -> None:
        """Pass the slot to the next waiter. A caller that was interrupted in the queue has none."""
        if turn.cancel():
            return
        with self._lock:
            while self._waiting:
                following = self._waiting.popleft()
                if following.set_running_or_notify_cancel():
                    following.set_result(None)
                    return
            self._free += 1


class ApiBackend(Backend):
    """Base of the backends that call a service through its official client; see the module.

    Attributes:
        key_variable: environment variable of the key, for error messages.
        address: URL of the service for error messages; "": messages have the service's name.
        token_usage: billed tokens; a subclass adds each reply's meta_info.
    """

    key_variable = ""
    address = ""

    def __init__(
        self,
        *,
        max_retries: int = MAX_RETRIES,
        timeout: float = TIMEOUT_SECONDS,
        max_concurrency: int = MAX_CONCURRENCY,
    ) -> None:
        self.token_usage = TokenUsage()
        self.max_retries = max_retries
        self.timeout = timeout
        self._slots = Slots(max_concurrency)
        self._lock = threading.Lock()
        self._own_loop = LoopThread()
        self._loops: dict[asyncio.AbstractEventLoop, tuple[Any, AsyncGenerator[Any, None]]] = {}
        self._closed = False

    def open_client(self) -> Any:
        """Return a new asynchronous client for the running event loop. Its ``close`` is a coroutine
        function.
        """
        raise NotImplementedError

    async def acomplete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        raise self.lacks("gen")

    def astream(self, prompt: Prompt, params: GenParams) -> AsyncGenerator[Completion, None]:
        raise self.lacks("streaming gen", "run without stream=True")

    async def achoose(
        self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
    ) -> Decision:
        raise self.lacks("select", "use gen and compare its text")

    def complete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        with self._unless_aborted():
            return self._own_loop.run(self.acomplete, prompt, params)

    def stream(self, prompt: Prompt, params: GenParams) -> Iterator[Completion]:
        with self._unless_aborted():
            yield from self._own_loop.iterate(self.astream, prompt, params)

    def choose(self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod) -> Decision:
        with self._unless_aborted():
            return self._own_loop.run(self.achoose, prompt, options, method)

    @contextmanager
    def _unless_aborted(self) -> Iterator[None]:
        """Convert CancelledError, of a thread's aborted call, to BackendError."""
        try:
            yield
        except CancelledError as error:
            self.check_open()
            raise BackendError(f"the call of {self.name} was aborted") from error

    @asynccontextmanager
    async def calling(self, prompt: Prompt) -> AsyncIterator[Any]:
        """Hold a slot and yield the client. Converts its errors to ``sglang.errors``."""
        async with self._slots.held():
            try:
                yield await self.loop_client()
            except Exception as error:
                if (translated := self.translated(error, prompt)) is None:
                    raise
                raise translated from error

    async def acommit(self, prompt: Prompt) -> dict[str, Any]:
        """Do nothing, without a worker thread: services have no such call."""
        return {}

    def translated(self, error: Exception, prompt: Prompt) -> BackendError | None:
        """Return the error to raise for an exception of the client; None: raise it unchanged."""
        kinds = _kinds(error)
        status, reason = getattr(error, "status_code", None), said(error)
        kind: type[BackendError] = BackendError
        if isinstance(error, SglangError):
            return None
        if "ConnectTimeout" in kinds | _kinds(error.__cause__):
            kind, status = TimedOut, None
            seconds = min(self.timeout, CONNECT_SECONDS)
            message = f"no connection to {self.address or self.name} within {seconds:g} s"
        elif kinds & {"APITimeoutError", "TimeoutException"}:
            kind, status = TimedOut, None
            message = f"{self.name} gave no answer within {self.timeout:g} s; raise timeout="
        elif kinds & {"APIConnectionError", "TransportError"}:
            kind, status = ConnectionFailed, None
            cause = str(error.__cause__ or "") or reason
            message = f"the connection to {self.address or self.name} failed: {cause}"
        elif "APIStatusError" in kinds:
            kind = refusal(status)
            message = f"{self.name} answered {status}: {reason}{self._advice(kind)}"
        elif "NoAnswer" in kinds:
            message = f"{self.name}: {reason}"
        elif kinds & {"BadReply", "JSONDecodeError", "UnicodeDecodeError", "ValidationError"}:
            message = f"{self.name} sent a malformed reply: {reason}"
        elif "APIError" in kinds:
            message = f"{self.name} ended the reply: {reason}"
        else:
            return None
        tail = prompt.text[-TAIL_CHARACTERS:] or None
        return kind(message, status, request_id=_request_id(error), prompt_tail=tail)

    def _advice(self, kind: type[BackendError]) -> str:
        if issubclass(kind, AuthenticationFailed):
            return f" (set {self.key_variable} or give api_key=)"
        if issubclass(kind, RateLimited):
            return f" (after {self.max_retries} retries; lower max_concurrency=)"
        return f" (after {self.max_retries} retries)" if issubclass(kind, ServerFailed) else ""

    def shutdown(self) -> None:
        """Abort the calls of threads and close all clients. The client of a caller's event loop is
        closed when that loop next runs.
        """
        with self._lock:
            self._closed = True
        self._own_loop.close()
        for loop, (_, lifetime) in tuple(self._loops.items()):
            with suppress(RuntimeError):  # a closed loop has closed its client
                loop.call_soon_threadsafe(partial(_end, loop, lifetime))

    async def loop_client(self) -> Any:
        """Return the client of the running event loop, made at the first call."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self.check_open()
            if loop in self._loops:
                return self._loops[loop][0]
            for closed in [known for known in self._loops if known.is_closed()]:
                del self._loops[closed]
            client = self.open_client()
        lifetime = _lifetime(client, loop, self._loops)
        await anext(lifetime)  # does not wait
        with self._lock:
            self._loops[loop] = client, lifetime
        return client

    def check_open(self) -> None:
        """Raise BackendError after ``shutdown``."""
        if self._closed:
            raise BackendError(f"this {self.name} backend has been shut down")


async def _lifetime(
    client: Any, loop: asyncio.AbstractEventLoop, loops: dict[asyncio.AbstractEventLoop, Any]
) -> AsyncGenerator[None, None]:
    """Keep a client open until this generator is closed, at the latest by the end of its loop."""
    try:
        yield
    finally:
        loops.pop(loop, None)
        await client.close()


def _end(loop: asyncio.AbstractEventLoop, lifetime: AsyncGenerator[Any, None]) -> None:
    loop.create_task(lifetime.aclose())


def _kinds(error: BaseException | None) -> set[str]:
    """Return the names of an error's classes, as the client's package may not be importable."""
    return {kind.__name__ for kind in type(error).__mro__}


def said(error: BaseException | None) -> str:
    """Return the service's error message, else the exception's."""
    body = getattr(error, "body", None)
    detail = body.get("error", body) if isinstance(body, Mapping) else None
    message = detail.get("message") if isinstance(detail, Mapping) else None
    return str(message or error or type(error).__name__)[:REASON_CHARACTERS]


def _request_id(error: Exception) -> str | None:
    headers = getattr(getattr(error, "response", None), "headers", {})
    known = getattr(error, "request_id", None)
    return known or headers.get("x-request-id") or headers.get("request-id")
