"""Chat stream: ``/v1/chat/completions`` of any server of OpenAI's API, by the standard library."""

from __future__ import annotations

import http.client
import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from sglang.backend.native.connections import seconds_of
from sglang.backend.native.http_proxy import is_loopback
from sglang.errors import BackendError, ConnectionFailed, refusal

LIST_SECONDS = 10.0
SILENCE_SECONDS = 600.0  # between two pieces of an answer; a long prompt is read in it
BUSY = (429, 503)
BUSY_SECONDS = 30.0  # for a server that refuses for the moment
MAX_LINE = 16 << 20  # bytes of one event
MAX_ERROR = 1 << 16


@dataclass
class ChatPiece:
    """A part of an answer: text, reasoning, or the facts of its end.

    Attributes:
        text: new text of the answer.
        reasoning: new text of its reasoning, where the server separates that.
        finish: reason of the end, on the last piece that has one.
        usage: token counts of the request, as the server tells them.
    """

    text: str = ""
    reasoning: str = ""
    finish: str = ""
    usage: dict[str, Any] = field(default_factory=dict)


class ChatServer:
    """A server at ``url``, with or without ``/v1`` at its end. Raises ValueError for no URL."""

    def __init__(self, url: str, api_key: str = "", insecure: bool = False) -> None:
        url = (url if "://" in url else f"http://{url}").rstrip("/")
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"--url is {url!r}; give http://HOST:PORT")
        self.url = url if parts.path.endswith("/v1") else f"{url}/v1"
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        context = ssl.create_default_context()
        if insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        handlers: list[Any] = [urllib.request.HTTPSHandler(context=context)]
        if is_loopback(parts.hostname):  # no proxy reaches this machine's own address
            handlers.append(urllib.request.ProxyHandler({}))
        self._opener = urllib.request.build_opener(*handlers)

    def models(self) -> list[str]:
        """Names of the models, at least one. Raises BackendError."""
        with closing(self._open("/models", None, LIST_SECONDS)) as reply:
            try:
                names = [str(one["id"]) for one in json.load(reply)["data"]]
            except (ValueError, KeyError, TypeError) as error:
                raise BackendError(
                    f"{self.url}/models answers with something else than a list of models; "
                    "--url must name a server of OpenAI's API"
                ) from error
        if not names:
            raise BackendError(f"{self.url} serves no model")
        return names

    def stream(self, body: dict[str, Any]) -> Iterator[ChatPiece]:
        """Pieces of the answer as they come. Closing the iterator ends the request.

        The request is sent again, for ``BUSY_SECONDS``, where the server refuses for the moment
        (429 or 503 with ``Retry-After``), as while its engine is started again.

        Raises BackendError where the server refuses, or its answer ends before its end.
        """
        whole = {**body, "stream": True, "stream_options": {"include_usage": True}}
        with closing(self._taken("/chat/completions", whole)) as reply:
            for data in _events(reply, self.url):
                if data == b"[DONE]":
                    return
                yield _piece(data)
        raise ConnectionFailed(f"{self.url} ended the answer in its middle")

    def _taken(self, path: str, body: dict[str, Any]) -> Any:
        """The reply, once the server takes the request."""
        until = time.monotonic() + BUSY_SECONDS
        while True:
            try:
                return self._open(path, body, SILENCE_SECONDS)
            except BackendError as error:
                if error.again_in is None or time.monotonic() + error.again_in >= until:
                    raise
                time.sleep(error.again_in)

    def _open(self, path: str, body: dict[str, Any] | None, seconds: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, self._headers)
        try:
            return self._opener.open(request, timeout=seconds)
        except urllib.error.HTTPError as error:
            with error:
                refused = refusal(error.code)(_message(error), error.code)
                if error.code in BUSY:
                    refused.again_in = seconds_of(error.headers.get("Retry-After"))
                raise refused from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            raise ConnectionFailed(f"no server answers at {self.url}: {reason}") from error


def _events(reply: Any, url: str) -> Iterator[bytes]:
    """The data of each server-sent event. Raises ConnectionFailed where the connection is cut."""
    while True:
        try:
            line = reply.readline(MAX_LINE)
        except (OSError, http.client.HTTPException) as error:
            raise ConnectionFailed(f"the connection to {url} was lost: {error}") from error
        if not line:
            return
        name, _, value = line.rstrip(b"\r\n").partition(b":")
        if name == b"data":
            yield value.strip()


def _piece(data: bytes) -> ChatPiece:
    """Return the piece in a stream's event. Raises BackendError where the event is an error, or no
    chunk of a chat."""
    try:
        event = json.loads(data)
        if "error" in event:
            error = event["error"]
            message = error.get("message", error) if isinstance(error, dict) else error
            raise BackendError(str(message))
        choices = event.get("choices") or [{}]
        delta = choices[0].get("delta") or {}
        reasoning = delta.get("reasoning_content") or delta.get("reasoning")
        return ChatPiece(
            text=_text(delta.get("content")),
            reasoning=_text(reasoning),
            finish=_text(choices[0].get("finish_reason")),
            usage=event.get("usage") or {},
        )
    except (ValueError, AttributeError, TypeError, LookupError) as error:
        raise BackendError(f"the server sent an event that is no chunk: {data[:80]!r}") from error


def _text(value: Any) -> str:
    """A text of a chunk, "" for none; of a list of parts their texts. Half a character becomes a
    question mark. Raises TypeError for another value."""
    if isinstance(value, list):
        return "".join(_text(part.get("text")) for part in value)
    if not isinstance(value, str | None):
        raise TypeError(f"a text is {value!r:.60}")
    return (value or "").encode("utf-8", "replace").decode()


def _message(error: urllib.error.HTTPError) -> str:
    text = error.read(MAX_ERROR)
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {error.code} {error.reason}"
