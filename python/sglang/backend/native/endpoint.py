"""RuntimeEndpoint: a runtime reached over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import aclosing, closing
from http.client import responses
from typing import Any, TypeAlias

from sglang.backend.native.connections import Connections, HttpExchange, ServerOrigin
from sglang.backend.native.connections_async import AsyncConnections, AsyncExchange
from sglang.backend.native.lost_server import ServerLeaves, ServerLoss, wait
from sglang.backend.native.native_backend import NativeBackend
from sglang.backend.renamed_parameters import renamed
from sglang.errors import BackendError, ConnectionFailed, refusal
from sglang.ir.chat_template import ChatTemplate, template_for, template_named
from sglang.semantics.tool_calls.tool_formats import with_tool_turns

# Names of fields in server-sent events; a line without a name is a comment or ends an event.
_FIELDS = ("data", "event", "id", "retry", "")
PARCEL = 1 << 20  # characters or token ids per request of tokenize and detokenize
RESUME_SECONDS = 30.0
BUSY = (429, 503)  # statuses of a server that has not begun the request, with Retry-After
LEAVES = "draining"  # error code of a draining server
KINDS = ("regex", "json_schema", "ebnf", "structural_tag")
Held: TypeAlias = tuple[AsyncConnections, AsyncGenerator[AsyncConnections, None]]


def _root(url: str) -> str:
    """Return a runtime's URL without the /v1 that clients of OpenAI's API append."""
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_text(value: Any) -> bool:
    """Return True if ``value`` has the form of a ``/generate`` answer for one text."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("text"), str)
        and isinstance(value.get("meta_info"), dict)
    )


def _are_texts(value: Any) -> bool:
    return all(map(_is_text, value)) if isinstance(value, list) else _is_text(value)


def _are_vectors(value: Any) -> bool:
    """Return True if ``value`` has the form of an ``/encode`` answer."""
    several = value if isinstance(value, list) else [value]
    return all(isinstance(one, dict) and isinstance(one.get("embedding"), list) for one in several)


class RuntimeEndpoint(NativeBackend):
    """The runtime at ``base_url``, with or without /v1 at its end, through the environment's proxy.
    Thread-safe: all programs share one pool of connections.

    Args:
        api_key: sent as ``Authorization: Bearer``.
        verify: False, or the path of a CA file, for https.
        chat_template_name: name of a template that replaces the model's own.
        resume_seconds: limit of a request's wait for another server if its server is lost or
            draining: the same one restarted, or another one behind a load balancer. A stream then
            continues after its tokens; a request without an answer is sent again. So is a request
            refused with ``Retry-After``, as during an engine's restart. 0: requests fail at once.

    Raises:
        BackendError: nothing answers at the URL, it is not a runtime, or it refuses the key.
        ValueError: the URL or the key cannot be used.
    """

    name = "RuntimeEndpoint"

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: bool | str | None = None,
        chat_template_name: str | None = None,
        resume_seconds: float = RESUME_SECONDS,
    ) -> None:
        if not isinstance(base_url, str):
            raise TypeError(f"the runtime is {base_url!r:.60}; give its URL: http://HOST:PORT")
        if "://" not in base_url:
            raise ValueError(f"{base_url!r} is no URL; give http://{base_url}")
        self.base_url, self.resume_seconds = _root(base_url), resume_seconds
        self._closed = False
        headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._origin = ServerOrigin(self.base_url, headers, True if verify is None else verify)
        self._http = Connections(self._origin)
        self._loops: dict[asyncio.AbstractEventLoop, Held] = {}
        self.model_info: dict[str, Any] = self._get("/get_model_info")
        # A runtime that does not report its constraints is an older one, which has all of them.
        self.constraints = frozenset(self.model_info.get("constraints", KINDS))
        self.scores_options = bool(self.model_info.get("scores_options"))
        if chat_template_name is not None:
            template = template_named(chat_template_name)
        else:
            template = self._find_template()
        template = template.seeing(self.model_info.get("placeholders") or {})
        self.tool_format = self.model_info.get("tool_format", "hermes")  # not reported by old ones
        self.chat_template = with_tool_turns(template, self.tool_format)

    def _find_template(self) -> ChatTemplate:
        """Return the model's template: by its jinja template, else by the model's name."""
        try:
            jinja = self._get("/tokenizer_info").get("chat_template")
        except BackendError:
            jinja = None
        return template_for(self.get_model_name(), jinja if isinstance(jinja, str) else None)

    def get_model_name(self) -> str:
        info = self.model_info
        return str(info.get("model_path") or info.get("served_model_name") or "")

    def call(self, body: dict[str, Any]) -> Any:
        loss = ServerLoss(body, self.resume_seconds)
        while True:
            try:
                return self._send("POST", "/generate", body, _are_texts)
            except BackendError as error:
                wait(loss.pause(error))

    async def acall(self, body: dict[str, Any]) -> Any:
        loss = ServerLoss(body, self.resume_seconds)
        while True:
            try:
                return await self._asend("POST", "/generate", body, _are_texts)
            except BackendError as error:
                await asyncio.sleep(loss.pause(error))

    def call_stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        loss = ServerLoss(body, self.resume_seconds)
        while not loss.ended:
            try:
                if loss.model_matters:
                    self._verify_model(self._get("/get_model_info"))
                with closing(self._events(loss.body)) as events:
                    for event in events:
                        yield loss.grown(event)
                return
            except BackendError as error:
                if not loss.ended:
                    wait(loss.pause(error))

    async def acall_stream(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        loss = ServerLoss(body, self.resume_seconds)
        while not loss.ended:
            try:
                if loss.model_matters:
                    self._verify_model(await self._asend("GET", "/get_model_info"))
                async with aclosing(self._aevents(loss.body)) as events:
                    async for event in events:
                        yield loss.grown(event)
                return
            except BackendError as error:
                if not loss.ended:
                    await asyncio.sleep(loss.pause(error))

    def _verify_model(self, info: dict[str, Any]) -> None:
        """Raise BackendError if the server's model differs from that of the first call."""
        old, new = self.model_info.get("model_path"), info.get("model_path")
        if old != new:
            raise BackendError(
                f"{self.base_url} serves {new} now, and a text of {old} cannot go on; send it again"
            )

    def _events(self, body: dict[str, Any]) -> Generator[dict[str, Any], None, None]:
        self._check_open()
        with self._http.exchange("POST", "/generate", body) as exchange:
            if exchange.status != 200:
                raise _refused(exchange.status, exchange.read(), exchange.retry_after)
            events = _Events(self.base_url)
            for line in exchange.lines():
                yield from events.of(line)
            events.end()

    async def _aevents(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        async with (await self._async_http()).exchange("POST", "/generate", body) as exchange:
            if exchange.status != 200:
                raise _refused(exchange.status, await exchange.read(), exchange.retry_after)
            events = _Events(self.base_url)
            async for line in exchange.lines():
                for event in events.of(line):
                    yield event
            events.end()

    async def program_call(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """POST ``body``, a request about a program; return the reply. Raises BackendError."""
        async with (await self._async_http()).exchange("POST", path, body) as exchange:
            answer = _answer(self.base_url, exchange, await exchange.read(), _is_object)
            return dict(answer)

    async def close_program_session(self, session_id: str) -> None:
        """End a session of programs that the runtime runs. Raises BackendError."""
        path = f"/v1/session/{session_id}"
        async with (await self._async_http()).exchange("DELETE", path) as exchange:
            _answer(self.base_url, exchange, await exchange.read(), _is_object)

    async def program_events(
        self, path: str, body: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """POST ``body``, a request about a program; yield its events. Raises BackendError."""
        async with (await self._async_http()).exchange("POST", path, body) as exchange:
            if exchange.status != 200:
                raise _refused(exchange.status, await exchange.read(), exchange.retry_after)
            events = _Events(self.base_url, _is_object)
            async for line in exchange.lines():
                for event in events.of(line):
                    yield event
            events.end()

    async def _async_http(self) -> AsyncConnections:
        """Return the connections of the running event loop, made at the first call."""
        self._check_open()
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            for closed in [known for known in list(self._loops) if known.is_closed()]:
                del self._loops[closed]
            lifetime = self._lifetime(loop)
            self._loops[loop] = await anext(lifetime), lifetime
        return self._loops[loop][0]

    async def _lifetime(
        self, loop: asyncio.AbstractEventLoop
    ) -> AsyncGenerator[AsyncConnections, None]:
        """Keep connections open until this generator is closed, at the latest by its loop's end."""
        connections = AsyncConnections(self._origin)
        try:
            yield connections
        finally:
            connections.close()
            self._loops.pop(loop, None)

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        if held := self._loops.get(asyncio.get_running_loop()):
            await held[1].aclose()

    def tokenize(self, texts: Sequence[str], special: bool = True) -> list[Sequence[int]]:
        found: list[Sequence[int]] = []
        for some in _parcels(texts):
            body = {"text": some, "add_special_tokens": special}
            found += self._send("POST", "/tokenize", body)["tokens"]
        return found

    def detokenize(self, rows: Sequence[Sequence[int]]) -> list[str]:
        found: list[str] = []
        for some in _parcels([list(row) for row in rows]):
            body = {"tokens": some, "skip_special_tokens": False}
            found += self._send("POST", "/detokenize", body)["text"]
        return found

    def flush_cache(self) -> Any:
        return self._send("POST", "/flush_cache")

    def get_server_info(self) -> dict[str, Any]:
        return self._get("/get_server_info")

    def load_lora_adapter(self, lora_name: str, lora_path: str, pinned: bool = False) -> Any:
        """Load the LoRA adapter in ``lora_path``, a directory that the runtime can read, under the
        name ``lora_name``. ``pinned``: never evict the adapter. Raises BackendError."""
        body = {"lora_name": lora_name, "lora_path": lora_path, "pinned": pinned}
        return self._send("POST", "/load_lora_adapter", body)

    def unload_lora_adapter(self, lora_name: str) -> Any:
        """Unload an adapter; return when its last request has ended. Raises BackendError."""
        return self._send("POST", "/unload_lora_adapter", {"lora_name": lora_name})

    @renamed(prompt="text")
    def encode(self, prompt: str | Sequence[str], **fields: Any) -> Any:
        """Return the answer of ``/encode``: ``{"embedding": [...], "meta_info": {...}}``, or a list
        of these for several texts. ``fields``: further fields of the request.

        Raises BackendError if the runtime's model makes no embeddings.
        """
        body = {"text": prompt if isinstance(prompt, str) else list(prompt), **fields}
        return self._send("POST", "/encode", body, _are_vectors)

    def shutdown(self) -> None:
        """Close the connections. The runtime keeps running."""
        self._closed = True
        self._http.close()

    def _get(self, path: str) -> dict[str, Any]:
        return dict(self._send("GET", path))

    def _send(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        promised: Callable[[Any], bool] = _is_object,
    ) -> Any:
        self._check_open()
        with self._http.exchange(method, path, body) as exchange:
            return _answer(self.base_url, exchange, exchange.read(), promised)

    async def _asend(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        promised: Callable[[Any], bool] = _is_object,
    ) -> Any:
        async with (await self._async_http()).exchange(method, path, body) as exchange:
            return _answer(self.base_url, exchange, await exchange.read(), promised)

    def _check_open(self) -> None:
        if self._closed:
            raise BackendError("this RuntimeEndpoint has been shut down")


def _parcels(values: Sequence[Any]) -> Iterator[list[Any]]:
    """Yield groups of texts or rows with at most ``PARCEL`` characters or ids, at least one."""
    some: list[Any] = []
    room = PARCEL
    for value in values:
        if some and len(value) > room:
            yield some
            some, room = [], PARCEL
        some.append(value)
        room -= len(value)
    if some:
        yield some


def _answer(
    url: str,
    exchange: HttpExchange | AsyncExchange,
    content: bytes,
    promised: Callable[[Any], bool],
) -> Any:
    if exchange.status != 200:
        raise _refused(exchange.status, content, exchange.retry_after)
    return _decoded(url, content, promised)


def _decoded(url: str, content: str | bytes, promised: Callable[[Any], bool]) -> Any:
    """Decode an answer. Raises BackendError if it is not JSON or ``promised`` returns False."""
    try:
        value = json.loads(content)
    except ValueError as error:
        raise _no_runtime(url, content) from error
    if not promised(value):
        raise _no_runtime(url, content)
    return value


def _no_runtime(url: str, content: str | bytes) -> BackendError:
    text = content if isinstance(content, str) else content.decode("utf-8", "replace")
    return BackendError(f"{url} is no runtime: it answered {text[:200]!r}")


def _refused(status: int, content: bytes, retry_after: float | None) -> BackendError:
    code = None
    try:
        error = json.loads(content)["error"]
        message = error["message"] if isinstance(error, dict) else str(error)
        code = error.get("code") if isinstance(error, dict) else None
    except (ValueError, KeyError, TypeError):
        message = content[:500].decode("utf-8", "replace") or responses.get(status, "")
    kind = ServerLeaves if code == LEAVES else refusal(status)
    error = kind(f"the runtime answered {status}: {message}", status)
    if status in BUSY and kind is not ServerLeaves:
        error.again_in = retry_after
    return error


class _Events:
    """Decodes the lines of a stream of events."""

    def __init__(self, url: str, promised: Callable[[Any], bool] = _is_text) -> None:
        self._url, self._promised, self._done = url, promised, False

    def of(self, line: str) -> Iterator[dict[str, Any]]:
        """Yield the event of a ``data:`` line. Raises BackendError for an event with an error."""
        field, _, data = line.partition(":")
        if field not in _FIELDS:
            raise _no_runtime(self._url, line)
        if field != "data" or self._done:
            return
        if data.strip() == "[DONE]":
            self._done = True
            return
        event = _decoded(self._url, data, _is_object)
        if "error" in event:
            error = event["error"]
            message = error.get("message", error) if isinstance(error, dict) else error
            code = error.get("code") if isinstance(error, dict) else None
            kind = ServerLeaves if code == LEAVES else BackendError
            raise kind(f"the runtime ended the stream: {message}")
        if not self._promised(event):
            raise _no_runtime(self._url, line)
        yield event

    def end(self) -> None:
        """Note the end of the body. Raises ConnectionFailed for a stream that was cut."""
        if not self._done:
            raise ConnectionFailed("the stream was cut before its end")
