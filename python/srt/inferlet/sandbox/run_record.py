"""RunRecord: the events of one run, which clients read from any event on."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Literal

import msgspec

Status = Literal["running", "completed", "failed"]
Event = dict[str, Any]
SHARE = 64  # bytes of an event beside its text, about


class RunRecord:
    """One run, while it goes on and until it is forgotten.

    Attributes:
        id: of the run. program: id of its program. owner: the tenant.
        status: "running", then "completed" or "failed".
        events: by their number, the first is 0.
        created: seconds since the epoch.
        size: bytes of the events, about.
    """

    def __init__(self, name: str, program: str, owner: str, backlog: int) -> None:
        self.id, self.program, self.owner = name, program, owner
        self.status: Status = "running"
        self.events: list[Event] = []
        self.created = int(time.time())
        self.size, self._backlog = 0, backlog
        self._news = asyncio.Event()
        self.stop: Callable[[str], None] = lambda error: None

    def emit(self, kind: str, **fields: Any) -> bool:
        """Add an event; whether it was added. Where the events have more bytes than the backlog, it
        is not, and the run is ended."""
        if self.status != "running":
            return False
        size = _size(fields)
        if kind in ("message", "blob", "log", "result") and self.size + size > self._backlog:
            self.stop("backlog: the run has sent more bytes than its limit backlog allows")
            return False
        self._add(kind, fields, size)
        return True

    def message(self, message: str | bytes) -> None:
        """A text or bytes for the client."""
        if isinstance(message, str):
            self.emit("message", text=message)
        else:
            self.emit("blob", data=base64.b64encode(message).decode())

    def log(self, line: str) -> None:
        """A line of the run's log."""
        self.emit("log", text=line)

    def end(self, error: str, usage: Event) -> None:
        """Add the last events; once."""
        if self.status != "running":
            return
        last = {"error": {"message": error}} if error else {}
        for kind, fields in {**last, "usage": usage}.items():
            self._add(kind, fields, _size(fields))
        self.status = "failed" if error else "completed"
        self._news.set()

    def _add(self, kind: str, fields: Event, size: int) -> None:
        self.size += size
        self.events.append({"type": kind, "number": len(self.events), **fields})
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def follow(self, after: int) -> AsyncGenerator[Event, None]:
        """The events behind the one of number ``after``, to the end of the run."""
        position = after + 1
        while True:
            news = self._news
            for event in self.events[position:]:
                yield event
                position += 1
            if position >= len(self.events):
                if self.status != "running":
                    return
                if news is self._news:
                    await news.wait()

    async def ended(self) -> None:
        """Wait for the end of the run."""
        async for _ in self.follow(len(self.events) - 1):
            pass

    def shown(self) -> dict[str, Any]:
        """The run as an object of the API."""
        found = {event["type"]: event for event in self.events}
        return {
            "id": self.id,
            "object": "inferlet.run",
            "inferlet": self.program,
            "created": self.created,
            "status": self.status,
            "events": len(self.events),
            "result": found.get("result", {}).get("value"),
            "error": found.get("error", {}).get("message"),
        }


def _size(fields: Event) -> int:
    return SHARE + len(msgspec.json.encode(fields))
