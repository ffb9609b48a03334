"""Asked: a call of a recorded run while it is made. Backends that send several requests for one
call find it in ``ASKED``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from sglang.backend.answer_facts import facts_of
from sglang.backend.base import Call, Choose, Commit, Completion, Stream

if TYPE_CHECKING:
    from sglang.inspect.timeline.trace import Span
    from sglang.run.recording import Track

# The call that the current thread or task makes, where it is recorded.
ASKED: ContextVar[Asked | None] = ContextVar("asked", default=None)


class Asked:
    """A call while it is made.

    A backend that sends several requests for a call records each; of the others the call itself is
    the one request.
    """

    def __init__(self, track: Track, node: Span, backend: str, call: Call) -> None:
        self._track, self._node, self._backend = track, node, backend
        self._begin = track.recording.now()
        self._first: float | None = None
        self._records = False  # the backend records each request
        # From the beginning, so that it is there while it goes on; a commit may need none.
        self._span = None if isinstance(call, Commit) else self._sent()
        self.answer: Any = None
        self.call = call
        if isinstance(call, Stream):
            self._show = call.show
            self.call = dataclasses.replace(call, show=self._timed)

    def _timed(self, so_far: Completion) -> None:
        if self._first is None and so_far.text:
            self._first = self._track.recording.now()
        self._show(so_far)

    def _sent(self) -> Span:
        return self._track.add("request", self._backend, self._node)

    @property
    def traceparent(self) -> str:
        """Header that makes the server's spans children of the latest request's; "" where the
        trace is not sent anywhere."""
        trace = self._track.recording.trace
        if trace.otel is None or self._span is None or not self._records:
            return ""
        return f"00-{trace.trace_id}-{self._span.number:016x}-01"

    @contextmanager
    def request(self) -> Iterator[Asked]:
        """While inside, one request is made; its maker sets ``answer``."""
        if self._span is None or self._records:
            self._span = self._sent()
        span, self._records, self.answer = self._span, True, None
        span.begin = self._track.recording.now()
        try:
            yield self
        except BaseException as error:
            self._close(span, error)
            raise
        self._close(span, None)

    def end(self, error: BaseException | None) -> None:
        """The call has ended."""
        idle = self._span is None and error is None and not self.answer
        if self._records or idle:
            return
        span = self._span or self._sent()
        span.begin = self._begin
        self._close(span, error)

    def _close(self, span: Span, error: BaseException | None) -> None:
        self._track.close(span, error)
        several = isinstance(self.call, Choose)
        assert span.end is not None
        span.data.update(facts_of(self.answer, several, span.begin, span.end, self._first))
