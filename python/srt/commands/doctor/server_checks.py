"""Checks of a running server, by requests such as clients send."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from sglang.srt.commands.doctor.finding import FAIL, OK, WARN, CheckFinding

SECONDS = 20.0  # for one answer
REQUEST_ID = "sglang-doctor"
MESSAGES = [{"role": "user", "content": "Say hello."}]


class ServerReply:
    """An answer, read whole.

    Attributes:
        status: HTTP status.
        text: the body.
    """

    def __init__(self, reply: Any) -> None:
        self.status: int = reply.status
        self.text: str = reply.read().decode(errors="replace")
        self._headers = reply.headers

    def header(self, name: str) -> str:
        return str(self._headers.get(name, ""))

    def json(self) -> Any:
        """Return the decoded body. Raises ValueError where it is no JSON."""
        return json.loads(self.text)

    def message(self) -> str:
        """The message of an error, or the beginning of the body."""
        try:
            return str(self.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            return self.text[:200].strip()


class Remote:
    """The server at ``url``; ``key`` is its API key, "" for none."""

    def __init__(self, url: str, key: str) -> None:
        self._url, self._key = url.rstrip("/").removesuffix("/v1"), key
        self._opener = build_opener(ProxyHandler({}))
        self._model, self._reached = "", False

    def _ask(
        self, method: str, path: str, *, json_body: Any = None, key: str | None = None
    ) -> ServerReply:
        """The answer, whatever its status. ``key`` stands in for the server's own; "" is none.

        Raises OSError or HTTPException where no answer comes.
        """
        key = self._key if key is None else key
        headers = {"X-Request-Id": REQUEST_ID, "Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        data = None if json_body is None else json.dumps(json_body).encode()
        request = Request(self._url + path, data, headers, method=method)
        try:
            with self._opener.open(request, timeout=SECONDS) as reply:
                return ServerReply(reply)
        except HTTPError as error:
            with error:
                return ServerReply(error)

    def reach(self) -> Iterator[CheckFinding]:
        """Check /health; without an answer no further check is made."""
        start = time.monotonic()
        try:
            reply = self._ask("GET", "/health")
        except (OSError, HTTPException) as error:
            fix = "start it, or mend the URL; a certificate must be known to this machine"
            yield CheckFinding("health", FAIL, f"{self._url}: {error}", fix)
            return
        spent = f"{(time.monotonic() - start) * 1e3:.0f} ms"
        if reply.status == 401:
            yield CheckFinding("health", FAIL, f"401 {reply.message()}", "give --api-key")
            return
        self._reached = True
        if reply.status != 200:
            fix = "wait; the server's log says what it is doing"
            yield CheckFinding("health", FAIL, f"{reply.status} {reply.message()}", fix)
        else:
            yield CheckFinding("health", OK, f"200 in {spent}")
        echoed = reply.header("X-Request-Id") == REQUEST_ID
        yield CheckFinding(
            "request id", OK if echoed else WARN,
            "X-Request-Id comes back" if echoed else "X-Request-Id does not come back",
            "" if echoed else "a proxy drops it, or this is another server",
        )  # fmt: skip

    def keys(self) -> Iterator[CheckFinding]:
        """Whether strangers are turned away."""
        if not self._reached:
            return
        bare = self._ask("GET", "/v1/models", key="")
        local = urlsplit(self._url).hostname in ("127.0.0.1", "localhost", "::1")
        if bare.status == 401:
            wrong = self._ask("GET", "/v1/models", key="wrong")
            good = wrong.status == 401
            found = "a key is needed" + ("" if good else ", but a wrong one will do")
            yield CheckFinding("keys", OK if good else FAIL, found)
        elif local:
            yield CheckFinding("keys", OK, "none is needed")
        else:
            fix = "start it with a key, or behind something that asks for one"
            yield CheckFinding("keys", WARN, "none is needed: who reaches it may use it", fix)

    def models(self) -> Iterator[CheckFinding]:
        if not self._reached:
            return
        reply = self._ask("GET", "/v1/models")
        if reply.status != 200:
            yield CheckFinding("models", FAIL, f"{reply.status} {reply.message()}")
            return
        cards = reply.json()["data"]
        self._model = cards[0]["id"]
        length = cards[0].get("max_model_len", "?")
        yield CheckFinding("models", OK, f"{self._model}, {length} tokens")

    def completion(self) -> Iterator[CheckFinding]:
        """One token."""
        if not self._reached:
            return
        body = {"model": self._model, "prompt": "Hello", "max_tokens": 1, "temperature": 0}
        start = time.monotonic()
        reply = self._ask("POST", "/v1/completions", json_body=body)
        spent = f"{(time.monotonic() - start) * 1e3:.0f} ms"
        if reply.status != 200:
            yield CheckFinding("completion", FAIL, f"{reply.status} {reply.message()}")
            return
        usage = reply.json()["usage"]
        counts = f"{usage['prompt_tokens']} + {usage['completion_tokens']} tokens"
        yield CheckFinding("completion", OK, f"{counts} in {spent}")

    def streaming(self) -> Iterator[CheckFinding]:
        """A chat, event by event."""
        if not self._reached:
            return
        body = {"model": self._model, "messages": MESSAGES, "max_tokens": 8, "stream": True}
        reply = self._ask("POST", "/v1/chat/completions", json_body=body)
        if reply.status != 200:
            message = reply.message()
            fix = "start it with --chat-template" if "template" in message else ""
            yield CheckFinding("streaming", FAIL, f"{reply.status} {message}", fix)
            return
        lines = [line for line in reply.text.split("\n\n") if line.strip()]
        events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        if lines[-1:] != ["data: [DONE]"] or not events:
            yield CheckFinding("streaming", FAIL, f"{len(lines)} events, and no [DONE] at the end")
        else:
            yield CheckFinding("streaming", OK, f"{len(events)} events and [DONE]")

    def metrics(self) -> Iterator[CheckFinding]:
        if not self._reached:
            return
        reply = self._ask("GET", "/metrics")
        names = {line.split("{")[0] for line in reply.text.split("\n") if line.startswith("sglang")}
        if reply.status == 403:
            yield CheckFinding("metrics", OK, "for the admin's key only")
        elif reply.status != 200 or not names:
            fix = "a proxy hides them, or this is another server"
            yield CheckFinding("metrics", WARN, f"{reply.status}: no metrics", fix)
        else:
            yield CheckFinding("metrics", OK, f"{len(names)} of them")
