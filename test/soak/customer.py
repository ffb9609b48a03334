"""A customer: asks, and judges what became of each request."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from helpers.apis import events
from helpers.matrix import error_of

from soak.wire import POLITE, Manners, Reply, exchange

HANGS = 300.0  # seconds after which an answer will not come any more, on the slowest machine
LET_GO = 5.0  # seconds that the server waits for a client that reads nothing


class Violation(Exception):
    """Something that must not be."""


@dataclass
class Faults:
    """Times without an engine, (begin, end) of each, and the time from which the server drains;
    seconds."""

    windows: list[list[float]] = field(default_factory=list)
    drained: float = float("inf")

    def lost(self, reply: Reply) -> bool:
        """Whether there was no engine at some moment of that request."""
        return any(begin <= reply.ended and reply.began <= end for begin, end in self.windows)

    def ending(self, reply: Reply) -> bool:
        return reply.ended >= self.drained


@dataclass
class Books:
    """Requests that were sent, and their outcomes: one for each.

    ``ways``: answered, refused (bad input, as it must be), full (429), late (a constraint's
    compilation), lost (the engine), busy (the engine, when its state is read), left (the
    client), let go (a client that does not read), drained.
    """

    sent: int = 0
    counted: int = 0
    ways: Counter[str] = field(default_factory=Counter)
    errands: Counter[str] = field(default_factory=Counter)


class Customer:
    """One of many at a time.

    random: source of all choices. key: API key of this errand.
    """

    def __init__(
        self, port: int, random: Random, keys: list[str], faults: Faults, books: Books
    ) -> None:
        self.random, self.key = random, ""
        self._port, self._keys, self._faults, self._books = port, keys, faults, books

    def change(self) -> None:
        """Change to another key."""
        self.key = self.random.choice(self._keys)

    async def ask(
        self,
        path: str,
        body: Any = None,
        method: str = "",
        expect: tuple[int, ...] = (200,),
        way: Manners = POLITE,
        key: str = "",
        check: Callable[[Reply], str] | None = None,
    ) -> Reply | None:
        """The answer, or None where there is none that could be judged further: for a reason that
        is no fault. ``check`` names the way in which a 200 ended, "" for the usual one.

        Raises Violation.
        """
        method = method or ("POST" if body is not None else "GET")
        headers = {"x-api-key": key or self.key}
        self._books.sent += 1
        try:
            reply = await asyncio.wait_for(
                exchange(self._port, method, path, body, headers, way), HANGS
            )
        except asyncio.TimeoutError:
            raise Violation(f"no end after {HANGS:g} s: {method} {path} {body}") from None
        try:
            ended = self._judge(reply, expect, way, check)
        except (AssertionError, ValueError, KeyError, TypeError, IndexError) as error:
            raise Violation(
                f"{method} {path} {_short(body)} {way}: {type(error).__name__} {error}; "
                f"{reply.status} {_short(reply.data)}"
            ) from error
        finally:
            self._books.counted += reply.counted
        self._books.ways[ended] += 1
        if ended in ("lost", "full", "drained"):
            await asyncio.sleep(self.random.uniform(0.5, 2.5))
        return reply if ended in ("answered", "refused") else None

    def _judge(
        self,
        reply: Reply,
        expect: tuple[int, ...],
        way: Manners,
        check: Callable[[Reply], str] | None,
    ) -> str:
        """Outcome of the request. Raises AssertionError, or any error of a malformed answer."""
        if not way.stays and not reply.whole:
            return "left"
        if not reply.whole:
            if self._faults.ending(reply) and not reply.status:
                return "drained"
            assert way.waits > LET_GO, "the answer breaks off"
            return "let go"
        ended = self._status(reply, expect)
        if not ended and check is not None:
            ended = check(reply)
        if ended == "lost":
            assert self._faults.lost(reply), "there was an engine all the time"
        return ended or ("answered" if reply.status < 300 else "refused")

    def _status(self, reply: Reply, expect: tuple[int, ...]) -> str:
        status = reply.status
        if status == 503:
            message = error_of(reply.response(), 503)
            if self._faults.ending(reply):
                return "drained"
            if "has not answered in time" in message:
                return "busy"
            if message.endswith("Try again."):  # from the processes that compile constraints
                assert int(reply.headers["retry-after"]) >= 1
                return "late"
            assert "engine" in message
            return "lost"
        if status == 429:
            error_of(reply.response(), 429)
            assert int(reply.headers["retry-after"]) >= 1
            return "full"
        assert status in expect, "another status"
        if status >= 400:
            error_of(reply.response(), status)
        return ""


# Errors that are a stream's last event; a response in the background begins before it is let in.
_LATE = {
    "engine_lost": "lost", "server_error": "lost", "draining": "drained", "queue_full": "full",
    "rate_limit_exceeded": "full",
}  # fmt: skip


def ends(reply: Reply, stream: bool, count: int = 1) -> str:
    """Assert that each of ``count`` completions has one end; "lost" where the engine was."""
    if not stream:
        answer = reply.json()
        values = answer if isinstance(answer, list) else [answer]
    else:
        values = events(reply.text)
        found = values[-1].get("response", values[-1]).get("error")
        if found:
            code = str(found["code"] if "code" in found else found["details"]["error_code"])
            return _LATE[code]  # KeyError: another error
    reasons: dict[int, list[str]] = {}
    for value in values:
        for index, reason in _reasons(value):
            reasons.setdefault(index, []).append(reason)
    if not stream and len(values) > 1:
        reasons = {i: [reason for _, reason in _reasons(value)] for i, value in enumerate(values)}
    assert sorted(reasons) == [*range(count)], reasons
    assert all(len(found) == 1 for found in reasons.values()), reasons
    return ""


def _reasons(value: dict[str, Any]) -> list[tuple[int, str]]:
    """Completions that end with this answer or event, each with its reason."""
    if "meta_info" in value:
        reason = value["meta_info"].get("finish_reason")
        return [(value.get("index", 0), reason["type"])] if reason else []
    if "choices" in value:
        choices = [c for c in value["choices"] if c.get("finish_reason")]
        return [(choice["index"], choice["finish_reason"]) for choice in choices]
    kind = value.get("type", "")
    if kind in ("response.completed", "response.incomplete", "response.failed", "message_stop"):
        return [(0, kind)]
    if kind == "message":
        return [(0, value["stop_reason"])]
    return [(0, value["status"])] if value.get("object") == "response" else []


def _short(value: Any) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else ""
    text = text or json.dumps(value, default=repr)
    return text if len(text) < 800 else f"{text[:500]} ... {text[-300:]}"
