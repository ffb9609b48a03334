"""Reading: computes a prompt without sampling, for an embedding or the distribution of the next
token.

    Open, Advance(Embed or Distribution), which closes the context
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from sglang.srt.core.messages import Advance, Close, Distribution, Done, Embed, Failed
from sglang.srt.engine.client import Client, EngineLost, Inbox
from sglang.srt.requests.completion.completion_request import CompletionRequest, field_of
from sglang.srt.requests.request_error import RequestError

ABORTED = "The request was aborted."
WINDOW = 1 << 14  # prompt tokens of one request that are in the engine at once
_CODES = {
    "invalid": "invalid_value", "busy": "queue_full", "overloaded": "overloaded",
    "lost": "engine_lost",
}  # fmt: skip


def refused(event: Failed) -> RequestError:
    """Return the error for the client of a request that failed in the engine."""
    code = _CODES.get(event.code, "internal_error")
    return RequestError(event.message, field_of(event.message), code)


async def read_all(readings: Sequence[Reading]) -> list[Done]:
    """Return the terminal event of each reading. At most ``WINDOW`` prompt tokens, or one prompt,
    are in the engine at once. So requests that arrive meanwhile wait at most for these.

    Raises RequestError, also if a reading was aborted, and EngineLost.
    """
    found: list[Done] = []
    inside = 0
    for reading in readings:
        size = len(reading.request.prompt)
        while inside and inside + size > WINDOW:
            oldest = readings[len(found)]
            found.append(await oldest.done())
            inside -= len(oldest.request.prompt)
        reading.begin()
        inside += size
    return found + [await reading.done() for reading in readings[len(found) :]]


class Reading:
    """One request of ``Completer.read`` in the engine. Its sampling parameters are ignored."""

    def __init__(
        self, client: Client, request: CompletionRequest, goal: Embed | Distribution
    ) -> None:
        self.request, self._client, self._goal = request, client, goal
        self._context = client.new_id()
        self._inbox: Inbox | None = None
        self.aborted = False

    def begin(self) -> None:
        """Send the request to the engine. Raises EngineLost."""
        request, number = self.request, self._client.new_id()
        self._inbox = self._client.submit(
            number,
            [request.opening(self._context), self._advance(number)],
            request.rid,
        )

    def _advance(self, number: int) -> Advance:
        request = self.request
        since, hint = request.waiting_since, request.hint
        return Advance(self._context, number, self._goal, request.priority, True, since, hint)

    async def done(self) -> Done:
        """Return the terminal event. Raises RequestError and EngineLost."""
        assert self._inbox is not None
        async for event in self._inbox:
            if isinstance(event, Failed):
                raise EngineLost(event.message) if event.code == "lost" else refused(event)
            if isinstance(event, Done) and event.reason != "abort":
                return event
        raise RequestError(ABORTED, "rid")

    def abort(self) -> None:
        """End the request in the engine; ``done`` then raises."""
        self.aborted = True
        if self._inbox is not None and not self._inbox.ended:
            with suppress(EngineLost):
                self._client.send(Close(self._context))

    def close(self) -> None:
        """Abort the request, and drop its later events."""
        self.abort()
        if self._inbox is not None:
            self._inbox.close()
