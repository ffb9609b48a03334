"""ApiBackend: what backends of paid services share, whichever official client they use.

A subclass opens the clients and makes each call inside ``calling`` (threads) or ``acalling`` (event
loops)::

    class Service(ApiBackend):
        name = "Service"
        key_variable = "SERVICE_API_KEY"

        def open_client(self):          # the official client, made at the first call
            return service.Client(max_retries=self.max_retries, timeout=self.timeout)

        def open_async_client(self):    # the same for event loops, one for each
            return service.AsyncClient(...)

        def complete(self, prompt, params):
            with self.calling(prompt) as client:
                reply = client.messages.create(**self.body(prompt, params))
                return self.completions(reply)          # may raise BadReply

        async def acomplete(self, prompt, params):
            async with self.acalling(prompt) as client:
                ...

Inside, one of ``max_concurrency`` slots is held, for a stream until it ends. Whatever the client or
the reading of its reply raises comes out as an error of ``sglang.errors``: a status by its class, a
timeout as TimedOut, a lost connection as ConnectionFailed, BadReply and undecodable replies as
BackendError, each with the status, the request id and the end of the prompt where they are known.
``sglang`` errors pass unchanged. Retries, with backoff and as Retry-After says, are the client's.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from typing import Any

from sglang.backend.base import Backend, Prompt
from sglang.cancel import aborted_by
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

MAX_RETRIES = 3
TIMEOUT_SECONDS = 600.0
MAX_CONCURRENCY = 64
TAIL_CHARACTERS = 80
REASON_CHARACTERS = 500


class BadReply(ValueError):
    """The service's reply is not what its API promises; the message says how."""

    def __init__(self, message: str, request_id: str | None = None) -> None:
        super().__init__(message)
        self.request_id = request_id


class TokenUsage:
    """Tokens that a backend has been billed for since it was made or ``reset``. Thread-safe."""

    def __init__(self) -> None:
        self.prompt_tokens = self.completion_tokens = 0
        self._lock = threading.Lock()

    def add(self, meta: Mapping[str, Any]) -> None:
        """Count a reply by its meta_info."""
        with self._lock:
            self.prompt_tokens += int(meta.get("prompt_tokens") or 0)
            self.completion_tokens += int(meta.get("completion_tokens") or 0)

    def reset(self) -> None:
        """Begin again at 0."""
        with self._lock:
            self.prompt_tokens = self.completion_tokens = 0

    def __repr__(self) -> str:
        return (
            f"TokenUsage(prompt_tokens={self.prompt_tokens}, "
            f"completion_tokens={self.completion_tokens})"
        )


class Slots:
    """At most ``limit`` holders at a time, threads and tasks alike, first come first served."""

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError(f"max_concurrency is {limit}; it is at least 1")
        self._free = limit
        self._waiting: deque[Future[None]] = deque()
        self._lock = threading.Lock()

    @contextmanager
    def held(self) -> Iterator[None]:
        """A slot, for a thread."""
        turn = self._join()

        def abort() -> None:
            turn.cancel()

        try:
            with aborted_by(abort):
                turn.result()
            yield
        finally:
            self._leave(turn)

    @asynccontextmanager
    async def aheld(self) -> AsyncIterator[None]:
        """A slot, for a task."""
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
        """Pass the slot on; who was interrupted while it waited has none."""
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
        key_variable: environment variable of the key, for the advice of an error.
        address: URL of the service, for the same; "" where it goes without saying.
        token_usage: what the calls have been billed for; a subclass adds each reply's meta_info.
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
        self._client: Any = None
        self._loops: dict[asyncio.AbstractEventLoop, tuple[Any, AsyncGenerator[Any, None]]] = {}
        self._closed = False

    def open_client(self) -> Any:
        """A client for threads; it has ``close``."""
        raise NotImplementedError

    def open_async_client(self) -> Any:
        """A client for the running event loop; its ``close`` is a coroutine function."""
        raise NotImplementedError

    @contextmanager
    def calling(self, prompt: Prompt) -> Iterator[Any]:
        """The client, and a slot to call it. Raises errors of ``sglang.errors``."""
        with self._slots.held():
            try:
                yield self.shared_client()
            except Exception as error:
                if (translated := self.translated(error, prompt)) is None:
                    raise
                raise translated from error

    @asynccontextmanager
    async def acalling(self, prompt: Prompt) -> AsyncIterator[Any]:
        """``calling`` for an event loop."""
        async with self._slots.aheld():
            try:
                yield await self.loop_client()
            except Exception as error:
                if (translated := self.translated(error, prompt)) is None:
                    raise
                raise translated from error

    async def acommit(self, prompt: Prompt) -> dict[str, Any]:
        """Nothing need happen, and no thread is taken for it."""
        return {}

    def translated(self, error: Exception, prompt: Prompt) -> BackendError | None:
        """What to raise for an exception of the client; None: the exception itself."""
        kinds = {kind.__name__ for kind in type(error).__mro__}
        status, said = getattr(error, "status_code", None), _reason(error)
        kind: type[BackendError] = BackendError
        if isinstance(error, SglangError):
            return None
        if kinds & {"APITimeoutError", "TimeoutException"}:
            kind, status = TimedOut, None
            message = f"{self.name} gave no answer within {self.timeout:g} s; raise timeout="
        elif kinds & {"APIConnectionError", "TransportError"}:
            kind, status = ConnectionFailed, None
            cause = str(error.__cause__ or "") or said
            message = f"the connection to {self.address or self.name} failed: {cause}"
        elif "APIStatusError" in kinds:
            kind = refusal(status)
            message = f"{self.name} answered {status}: {said}{self._advice(kind)}"
        elif kinds & {"BadReply", "JSONDecodeError", "UnicodeDecodeError", "ValidationError"}:
            message = f"{self.name} sent a malformed reply: {said}"
        elif "APIError" in kinds:
            message = f"{self.name} ended the reply: {said}"
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
        """Close the connections; those of an event loop when that comes to it."""
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
            loops = list(self._loops.items())
        if client is not None:
            client.close()
        for loop, (_, lifetime) in loops:
            with suppress(RuntimeError):  # a closed loop has closed its client
                loop.call_soon_threadsafe(partial(_end, loop, lifetime))

    def shared_client(self) -> Any:
        """The client of all threads."""
        with self._lock:
            self.check_open()
            if self._client is None:
                self._client = self.open_client()
            return self._client

    async def loop_client(self) -> Any:
        """The client of the running event loop."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self.check_open()
            if loop in self._loops:
                return self._loops[loop][0]
            for closed in [known for known in self._loops if known.is_closed()]:
                del self._loops[closed]
        lifetime = self._lifetime(loop)
        client = await anext(lifetime)  # which does not wait
        with self._lock:
            self._loops[loop] = client, lifetime
        return client

    async def _lifetime(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[Any, None]:
        """Holds a client; a loop that ends closes its generators, and this one the client."""
        client = self.open_async_client()
        try:
            yield client
        finally:
            with self._lock:
                self._loops.pop(loop, None)
            await client.close()

    def check_open(self) -> None:
        """Raises BackendError after ``shutdown``."""
        if self._closed:
            raise BackendError(f"this {self.name} backend has been shut down")


def _end(loop: asyncio.AbstractEventLoop, lifetime: AsyncGenerator[Any, None]) -> None:
    loop.create_task(lifetime.aclose())


def _reason(error: Exception) -> str:
    """What the service said, else the exception's own words."""
    body = getattr(error, "body", None)
    detail = body.get("error", body) if isinstance(body, Mapping) else None
    message = detail.get("message") if isinstance(detail, Mapping) else None
    return str(message or error or type(error).__name__)[:REASON_CHARACTERS]


def _request_id(error: Exception) -> str | None:
    headers = getattr(getattr(error, "response", None), "headers", {})
    known = getattr(error, "request_id", None)
    return known or headers.get("x-request-id") or headers.get("request-id")
