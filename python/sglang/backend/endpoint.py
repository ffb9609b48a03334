"""RuntimeEndpoint: a runtime reached over HTTP."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from sglang.backend.native import NativeBackend
from sglang.cancel import aborted_by, in_a_run
from sglang.chat import ChatTemplate, template_for, template_named
from sglang.errors import BackendError, ConnectionFailed, refusal

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 10.0


class RuntimeEndpoint(NativeBackend):
    """The runtime at ``base_url``. Thread-safe: one pool of connections for all programs.

    Args:
        api_key: sent as ``Authorization: Bearer``.
        verify: False, or the path of a CA file, for https.
        chat_template_name: instead of the template chosen by the model.

    Raises:
        BackendError: nothing answers at the URL, or it refuses the key.
    """

    name = "RuntimeEndpoint"

    def __init__(
        self,
        base_url: str,
        api_key: str | None = None,
        verify: bool | str | None = None,
        chat_template_name: str | None = None,
    ) -> None:
        import httpx

        if "://" not in base_url:
            raise ValueError(f"{base_url!r} is no URL; give http://{base_url}")
        self.base_url = base_url.rstrip("/")
        self._closed = False
        self._client_options: dict[str, Any] = {
            "base_url": self.base_url,
            "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
            "verify": True if verify is None else verify,
            "timeout": httpx.Timeout(None, connect=CONNECT_SECONDS),
            "limits": httpx.Limits(max_connections=None, max_keepalive_connections=256),
            "trust_env": False,
        }
        self._http = httpx.Client(**self._client_options)
        self._async: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx.AsyncClient] = (
            WeakKeyDictionary()
        )
        self.model_info: dict[str, Any] = self._get("/get_model_info")
        if chat_template_name is not None:
            self.chat_template = template_named(chat_template_name)
        else:
            self.chat_template = self._find_template()

    def _find_template(self) -> ChatTemplate:
        """By the model's own template; a runtime that does not show it has its model's name."""
        try:
            jinja = self._get("/tokenizer_info").get("chat_template")
        except (BackendError, AttributeError):
            jinja = None
        info = self.model_info
        name = info.get("model_path") or info.get("served_model_name") or ""
        return template_for(str(name), jinja if isinstance(jinja, str) else None)

    def call(self, body: dict[str, Any]) -> Any:
        with self._abortable(body) as named:
            return self._send("POST", "/generate", named)

    async def acall(self, body: dict[str, Any]) -> Any:
        import httpx

        try:
            response = await self._async_http().post("/generate", json=body)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        return _answer(response)

    @contextmanager
    def _abortable(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Names the request of a program, so that the program's end can abort it."""
        if not in_a_run():
            yield body
            return
        rid = body.get("rid") or uuid.uuid4().hex
        with aborted_by(lambda: self._send("POST", "/abort_request", {"rid": rid})):
            yield {**body, "rid": rid}

    def call_stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        import httpx

        try:
            with (
                self._abortable(body) as named,
                self._http.stream("POST", "/generate", json=named) as response,
            ):
                if response.status_code != 200:
                    response.read()
                    raise _refused(response)
                events = _Events()
                for line in response.iter_lines():
                    yield from events.of(line)
                events.end()
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        except RuntimeError as error:
            raise self._shut(error) from error

    async def acall_stream(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        import httpx

        try:
            async with self._async_http().stream("POST", "/generate", json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise _refused(response)
                events = _Events()
                async for line in response.aiter_lines():
                    for event in events.of(line):
                        yield event
                events.end()
        except httpx.TransportError as error:
            raise self._unreachable(error) from error

    def _async_http(self) -> httpx.AsyncClient:
        """The client of the running event loop; it is dropped with its loop."""
        import httpx

        if self._closed:
            raise BackendError("this RuntimeEndpoint has been shut down")
        loop = asyncio.get_running_loop()
        client = self._async.get(loop)
        if client is None:
            client = self._async[loop] = httpx.AsyncClient(**self._client_options)
        return client

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        client = self._async.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def flush_cache(self) -> Any:
        return self._send("POST", "/flush_cache")

    def get_server_info(self) -> dict[str, Any]:
        return dict(self._get("/get_server_info"))

    def encode(self, text: str | Sequence[str]) -> Any:
        """Embedding of ``text``. Raises BackendError where the runtime serves none."""
        return self._send("POST", "/encode", {"text": text})

    def shutdown(self) -> None:
        """Close the connections; the runtime goes on."""
        self._closed = True
        self._http.close()

    def _get(self, path: str) -> Any:
        return self._send("GET", path)

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        import httpx

        try:
            response = self._http.request(method, path, json=body)
        except httpx.TransportError as error:
            raise self._unreachable(error) from error
        except RuntimeError as error:
            raise self._shut(error) from error
        return _answer(response)

    def _shut(self, error: RuntimeError) -> Exception:
        """httpx's complaint of a closed client, in our words."""
        return BackendError("this RuntimeEndpoint has been shut down") if self._closed else error

    def _unreachable(self, error: Exception) -> BackendError:
        import httpx

        reason = str(error) or type(error).__name__
        if isinstance(error, httpx.ConnectError):
            return ConnectionFailed(
                f"no runtime answers at {self.base_url} ({reason}); "
                "start one with: python -m sglang.launch_server"
            )
        return ConnectionFailed(f"the connection to {self.base_url} was lost: {reason}")


def _answer(response: httpx.Response) -> Any:
    if response.status_code != 200:
        raise _refused(response)
    try:
        return response.json()
    except ValueError:
        return response.text


def _refused(response: httpx.Response) -> BackendError:
    try:
        error = response.json()["error"]
        message = error["message"] if isinstance(error, dict) else str(error)
    except (ValueError, KeyError, TypeError):
        message = response.text[:500] or response.reason_phrase
    status = response.status_code
    return refusal(status)(f"the runtime answered {status}: {message}", status)


class _Events:
    """Decodes the lines of a stream of events."""

    def __init__(self) -> None:
        self._done = False

    def of(self, line: str) -> Iterator[dict[str, Any]]:
        """The event of a ``data:`` line. Raises BackendError for an error in it."""
        data = line[5:].strip() if line.startswith("data:") else ""
        if data == "[DONE]":
            self._done = True
        if self._done or not data:
            return
        event = json.loads(data)
        if "error" in event:
            error = event["error"]
            message = error.get("message", error) if isinstance(error, dict) else error
            raise BackendError(f"the runtime ended the stream: {message}")
        yield event

    def end(self) -> None:
        """Raises ConnectionFailed for a stream that was cut."""
        if not self._done:
            raise ConnectionFailed("the stream was cut before its end")
