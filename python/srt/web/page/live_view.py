"""Live: a snapshot of the engine's state, once (``/live``) or repeatedly (``/live/events``). For
administrators only: it shows the texts of all tenants."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Sequence
from itertools import groupby
from typing import Annotated, Any

import msgspec
from sglang.ir.declaration import Bounds
from sglang.srt.core.ints import ints
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.explanations import read
from sglang.srt.runtime.programs.program_view import running_programs
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import ServerError, json_response
from sglang.srt.web.exchange.event_stream import respond, unless_gone
from sglang.srt.web.exchange.query import read_query
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response

PATHS = ("/live", "/live/events")

MAX_SNAPSHOTS = 3600  # most snapshots of one stream; a client then opens another stream
MAX_WATCHERS = 16  # most simultaneous streams
TEXT_CHARS = 48  # characters of a node's text that are shown
_SIGNS = {"\n": "↵", "\t": "⇥"}
_ROLE = re.compile(r"^\s*(?:system|developer|user|assistant|model|tool|ipython)\s*(?:\n|$)")
_SLICE = 0.1  # seconds within which a stream notices a drain


class LiveQuery(msgspec.Struct):
    limit: Annotated[int, Bounds(0, 1000), "Most nodes of the radix tree."] = 200


class LiveEventsQuery(LiveQuery):
    interval: Annotated[float, Bounds(0.1, 60.0), "Seconds from one snapshot to the next."] = 1.0


async def live(state: ServerState, request: Request) -> Response:
    """Return a snapshot with requests, counters and at most ``limit`` (query) nodes of the radix
    tree."""
    limit = read_query(request, LiveQuery).limit
    return json_response(await unless_gone(request, snapshot(state, limit)))


async def events(state: ServerState, request: Request) -> Response:
    """Send snapshots as server-sent events, one every ``interval`` (query) seconds, until the
    server drains.

    The engine answers only between two passes. If it does not answer in time, the snapshot is
    ``{"busy": true}``.
    """
    query = read_query(request, LiveEventsQuery)
    shared = request.app.state
    shared.watch = getattr(shared, "watch", None) or LiveWatch(state)
    return await respond(request, shared.watch.snapshots(query.limit, query.interval))


class LiveWatch:
    """Snapshots that all streams of one server share, so many streams cost the engine no more than
    one.

    Attributes:
        open: number of open streams.
    """

    def __init__(self, state: ServerState) -> None:
        self.open = 0
        self._state, self._asking = state, asyncio.Lock()
        self._last: tuple[tuple[int, bool] | None, float, dict[str, Any]] = (None, 0.0, {})

    async def snapshots(self, limit: int, interval: float) -> AsyncGenerator[dict[str, Any], None]:
        """Yield snapshots with at most ``limit`` nodes of the radix tree, one every ``interval``
        seconds. Raises RequestError if too many streams are open, and EngineLost."""
        if self.open >= MAX_WATCHERS:
            raise RequestError(
                f"{self.open} streams of /live/events are open; at most {MAX_WATCHERS}. Close one.",
                code="queue_full",
            )
        self.open += 1
        try:
            for _ in range(MAX_SNAPSHOTS):
                begun = time.monotonic()
                yield await self._recent(limit, interval / 2)
                while (left := begun + interval - time.monotonic()) > 0:
                    if self._state.draining:
                        return
                    await asyncio.sleep(min(left, _SLICE))
                if self._state.draining:
                    return
        finally:
            self.open -= 1

    async def _recent(self, limit: int, age: float) -> dict[str, Any]:
        """Return the last snapshot if it is at most ``age`` seconds old, otherwise a new one."""
        kind = (limit, CALLER.get().admin)
        async with self._asking:
            last, when, found = self._last
            if last != kind or time.monotonic() > when + age:
                found = await self._ask(limit)
                self._last = kind, time.monotonic(), found
            return found

    async def _ask(self, limit: int) -> dict[str, Any]:
        try:
            return await snapshot(self._state, limit)
        except RequestError as error:
            if error.code != "engine_lost":
                raise
            return {"busy": True}


async def snapshot(state: ServerState, limit: int) -> dict[str, Any]:
    """Return the tree, the queue and the counters. Raises EngineLost, RequestError if the engine
    does not answer, and ServerError if it refuses."""
    reply = await state.runtime.control("tree", limit)
    if not reply.ok:
        raise ServerError("internal_error", f"The engine refused: {reply.message}.")
    tree, seen = reply.data["tree"], CALLER.get().admin
    programs, more = running_programs(state.programs.sessions) if seen else ([], 0)
    return {
        **reply.data,
        "tree": {**tree, "nodes": [_node(state, node, seen) for node in tree["nodes"]]},
        "time": time.time(),
        "uptime": time.monotonic() - state.began,
        "model": state.runtime.model_name,
        "pending": state.runtime.completion.pending,
        "open_requests": state.open_requests,
        "programs": programs,
        "more_programs": more,
        "latency": state.metrics.hour.latency(),
        "hour": state.metrics.hour.minutes(),
    }


def _node(state: ServerState, node: dict[str, Any], seen: bool) -> dict[str, Any]:
    """Return a node of the radix tree with text in place of token ids. Its text, namespace and
    adapter are empty unless the caller may see them (``seen``)."""
    shown = {key: value for key, value in node.items() if key != "text_ids"}
    if not seen:
        return {**shown, "text": "", "plain": "", "namespace": "", "adapter": ""}
    tokenizer, ids = state.runtime.tokenizer, node["text_ids"]
    more = len(ids) < node["tokens"]
    return {
        **shown,
        "text": _line(read(tokenizer, ids), more),
        "plain": _line(_plain(tokenizer, ids), more),
        "namespace": _line(node["namespace"]),
    }


def _plain(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text without the parts that a chat template adds: special tokens, and a role's
    name after one."""
    parts, special = [], tokenizer.special_ids
    for marked, group in groupby(ids, lambda token: token in special):
        if not marked:
            text = read(tokenizer, ints(group))
            parts.append(_ROLE.sub("", text).strip())
    return " · ".join(filter(None, parts))


def _line(text: str, more: bool = False) -> str:
    """Return the beginning of a text on one line. ``more``: the text itself is incomplete."""
    line = "".join(map(_visible, text[:TEXT_CHARS]))
    return f"{line}…" if more or len(text) > TEXT_CHARS else line


def _visible(char: str) -> str:
    """Return a character, or for a non-printing one its control picture or U+FFFD."""
    if char.isprintable() or char in _SIGNS:
        return _SIGNS.get(char, char)
    return chr(0x2400 + ord(char)) if ord(char) < 0x20 else " " if char.isspace() else "\ufffd"
