"""RunEvents: the events of a run, kept so that each follower gets all of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import msgspec
from sglang.srt.runtime.programs.promises import Signal

GROWN = "grown"


class RunEvents:
    """The events of one run.

    Attributes:
        size: bytes of the kept events.
        growers: number of followers that want text as it grows.
        followers: number of followers.
        ended: the last event was added.
    """

    def __init__(self) -> None:
        self.size = self.growers = self.followers = 0
        self.ended = self._expected = False
        self._events: list[msgspec.Raw] = []
        self._growing: dict[int, str] = {}  # the latest text of each running call
        self._changed = Signal()

    def add(self, event: dict[str, Any]) -> int:
        """Keep an event, and return its size in bytes."""
        data = msgspec.json.encode(event)
        self._events.append(msgspec.Raw(data))
        self._growing.pop(event.get("step", -1), None)
        self.size += len(data)
        self.ended = event["event"] == "end"
        self._changed.notify()
        return len(data)

    def grow(self, step: int, text: str) -> None:
        """Record a call's text so far. Only the latest text of each call is kept."""
        self._growing[step] = text
        if self.growers:
            self._changed.notify()

    def expect(self) -> None:
        """Announce a follower that wants text as it grows; ``growers`` counts it from now on."""
        self._expected = True
        self.growers += 1

    async def follow(self, grown: bool) -> AsyncGenerator[Any, None]:
        """Yield all past events, then each new one until the run ends. ``grown``: also events with
        the text so far of running calls."""
        at, shown = 0, dict[int, int]()
        self.followers += 1
        if grown and self._expected:
            self._expected = False
        else:
            self.growers += grown
        try:
            while True:
                while at < len(self._events):
                    at += 1
                    yield self._events[at - 1]
                if self.ended:
                    return
                for step, text in list(self._growing.items()) if grown else ():
                    if shown.get(step) != len(text) and at == len(self._events):
                        shown[step] = len(text)
                        yield {"event": GROWN, "step": step, "text": text}
                if at == len(self._events):
                    await self._changed.wait()
        finally:
            self.followers -= 1
            self.growers -= grown
