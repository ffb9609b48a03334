"""ServerLoss: retries of a request whose server is lost.

The server, or another one behind the same URL, may be available again soon. So may the engine of a
server, which refuses requests with ``Retry-After`` meanwhile. A request without any answer is sent
again. A stream is continued after the tokens that have arrived (``output_ids``), so that its text
is the same as without a loss. The number of losses is limited, because the request itself may be
the cause of a server's end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

from sglang.backend.cancel import aborted_by
from sglang.errors import BackendError, ConnectionFailed, ServerFailed

MOST_LOSSES = 2  # limit of the servers that are lost while they process one request
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds between two attempts; each is twice the last
# Fields of requests that use state in the server, which is lost with it: no retry.
_ONCE = ("park", "resume", "session_params", "kv_hints")
_BEFORE = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")
_OF_PROMPT = (
    "input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs", "cached_tokens",
)  # fmt: skip


class NoServer(ConnectionFailed):
    """No server accepts the connection, so no server has seen the request."""


class ServerLeaves(ServerFailed):
    """The server is draining and refuses or ends the request."""


class ServerLoss:
    """One request and its answer so far, over all servers that processed it.

    Attributes:
        body: body of the next attempt.
        ended: the last event of a stream has arrived.
    """

    def __init__(self, body: dict[str, Any], seconds: float) -> None:
        """``seconds``: limit of the wait for a server after each loss."""
        self.body, self._first, self._seconds = body, body, seconds
        self.ended = False
        self._last: dict[str, Any] | None = None  # event of a stream
        self._prompt: dict[str, Any] = {}  # facts of the prompt, from the first event
        self._earlier: dict[str, Any] = {}  # meta_info of the earlier servers
        self._losses, self._until, self._pause = 0, 0.0, 0.0

    @property
    def model_matters(self) -> bool:
        """True if the next server must have the same model, because the body has token ids."""
        return "output_ids" in self.body

    def grown(self, event: dict[str, Any]) -> dict[str, Any]:
        """Process an event of a server. Return the event of the whole stream over all servers."""
        self._until = 0.0
        meta = event["meta_info"]
        if self._last is None:
            self._prompt = {name: meta[name] for name in _OF_PROMPT if name in meta}
        if self._earlier:
            own = {name: value for name, value in self._prompt.items() if name in meta}
            meta = event["meta_info"] = {**_joined(self._earlier, meta), **own}
        self._last, self.ended = event, meta.get("finish_reason") is not None
        return event

    def pause(self, error: BackendError) -> float:
        """Return the seconds to wait before the next attempt. Raises ``error`` if no further
        attempt is allowed."""
        now, refused = time.monotonic(), error.again_in is not None
        known = refused or isinstance(error, ConnectionFailed | ServerLeaves)
        if not known or not self._may_go_on():
            raise error
        if not refused and not isinstance(error, NoServer | ServerLeaves):
            self._losses += 1
            if self._losses > MOST_LOSSES:
                raise ConnectionFailed(
                    f"{error}; the request was in {self._losses} servers that were lost"
                ) from error
        if not self._until:
            self._until, self._pause = now + self._seconds, FIRST_PAUSE
        if now + (error.again_in or 0.0) >= self._until:
            raise error
        self._go_on()
        if error.again_in is not None:
            return error.again_in
        pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        return min(pause, self._until - now)

    def _may_go_on(self) -> bool:
        if self._seconds <= 0 or any(self.body.get(name) is not None for name in _ONCE):
            return False
        last = self._last
        return last is None or (bool(last.get("output_ids")) and "index" not in last)

    def _go_on(self) -> None:
        """Change ``body`` to request only the missing tokens."""
        if self._last is not None:
            self._earlier = self._last["meta_info"]
            self.body = {**self._first, "output_ids": list(self._last["output_ids"])}
            self.body.pop("logprob_start_len", None)


def wait(seconds: float) -> None:
    """Sleep, unless the run is cancelled meanwhile."""
    cancelled = threading.Event()
    with aborted_by(cancelled.set):
        cancelled.wait(seconds)


def _joined(earlier: Mapping[str, Any], meta: dict[str, Any]) -> dict[str, Any]:
    """Return the meta_info of a generation from those of its first part and of the rest."""
    joined = {name: [*earlier.get(name, ()), *meta[name]] for name in _BEFORE if name in meta}
    return {**meta, **joined}
