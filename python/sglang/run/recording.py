"""Recording: objects that record a run of a program in a trace.

    Recording (a run) -> Track (a lane) -> Visit (a node) -> RecordedCall -> requests

A run that is not recorded has none of these objects: its executors' ``track`` is None. Additions to
a trace append whole objects to lists, so that threads need no lock.
"""

from __future__ import annotations

import asyncio
import dataclasses
import linecache
import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sglang.backend.answer_facts import facts_of
from sglang.backend.base import Backend, Call, Choose, Commit, Completion, StreamCall
from sglang.backend.call_observer import OBSERVER
from sglang.backend.tool_invocation import ToolInvocation
from sglang.errors import Cancelled
from sglang.ir.params import chosen
from sglang.ir.source_location import Location
from sglang.run.failure import Failure
from sglang.run.stream import Stream
from sglang.run.trace_record import LaneJoin, TraceGroup, TraceLane, TraceRecord, TraceSpan

PROMPT_CHARS, TEXT_CHARS, ERROR_CHARS = 600, 4000, 500
CANCELS = (KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Cancelled)


class Recording:
    """Record of one run.

    Args:
        outer: recording of the run that contains this run.
        on_end: called when the run has ended.
        inline: the program's own thread visits the nodes.
    """

    def __init__(
        self,
        trace: TraceRecord,
        name: str,
        outer: Recording | None = None,
        on_end: Callable[[], None] | None = None,
        inline: bool = False,
    ) -> None:
        self.trace, self._on_end, self.cancelled = trace, on_end, False
        inside = outer.group.number if outer is not None and outer.trace is trace else None
        self.group: TraceGroup = TraceGroup(next(trace.numbers), name, parent=inside, inline=inline)
        self.track = Track(self, TraceLane(next(trace.numbers), self.group.number))

    @contextmanager
    def of(self, args: Sequence[Any], arguments: Mapping[str, Any] | None) -> Iterator[None]:
        """Record the program that runs inside the context, with its call's arguments."""
        group = self.group
        shown = [_repr.repr(value) for value in args]
        shown += [f"{name}={_repr.repr(value)}" for name, value in (arguments or {}).items()]
        group.arguments = ", ".join(shown)[:PROMPT_CHARS]
        group.begin = self.track.lane.begin = self.track.lane.asked = self.trace.now()
        self.trace.groups.append(group)
        self.trace.lanes.append(self.track.lane)
        try:
            yield
        except BaseException as error:
            self._end(error)
            raise
        self._end(None)

    def _end(self, error: BaseException | None) -> None:
        """End the record. Open spans count as cancelled."""
        group = self.group
        group.status, group.error = status_of(error), told(error)
        group.end = self.trace.now()
        if self._on_end is not None:
            self._on_end()

    def now(self) -> float:
        """Return the seconds since the trace began; after the run's end, the end's."""
        return self.trace.now() if self.group.end is None else self.group.end


class Track:
    """Records one lane."""

    def __init__(self, recording: Recording, lane: TraceLane) -> None:
        self.recording, self.lane = recording, lane

    def _number(self) -> int:
        return next(self.recording.trace.numbers)

    def fork(self, index: int, location: Location) -> Track:
        """Add the lane of fork number ``index``."""
        source, code = place(location)
        return self._below(index=index, source=source, code=code)

    def called(self) -> Track:
        """Add the lane of a program that this program calls on a separate state."""
        return self._below(begin=self.recording.now())

    def _below(self, **about: Any) -> Track:
        """Add a lane whose parent is this lane; ``about``: its other fields."""
        now = self.recording.now()
        lane = TraceLane(self._number(), self.lane.group, self.lane.number, asked=now, **about)
        self.recording.trace.lanes.append(lane)
        return Track(self.recording, lane)

    def start(self) -> None:
        """Note that the parent has reached the fork. Internal copies share a lane that has already
        started."""
        if self.lane.begin is None:
            self.lane.begin = self.recording.now()

    def fail(self, failure: Failure) -> None:
        """Note that the executor has ended with ``failure``."""
        cancelled = failure.location is None
        self.lane.status = "cancelled" if cancelled else status_of(failure.error)
        self.lane.error = told(failure.error)

    def joined(self, others: Sequence[Track | None], mode: str) -> None:
        """Note that the lanes ``others`` were joined in this lane."""
        lanes = [other.lane.number for other in others if other is not None]
        self.recording.trace.joins.append(
            LaneJoin(self.lane.number, lanes, self.recording.now(), mode)
        )

    def visit(self, names: Sequence[str], location: Location, stream: Stream) -> Visit:
        """Return the record of a node's visit, for a node that may need the model."""
        return Visit(self, names, location, stream)

    def add(self, kind: str, name: str, parent: TraceSpan | None = None) -> TraceSpan:
        """Add a span that begins now."""
        span = TraceSpan(self._number(), self.lane.number, kind, name, self.recording.now())
        span.parent = None if parent is None else parent.number
        self.recording.trace.spans.append(span)
        return span

    def close(self, span: TraceSpan, error: BaseException | None = None) -> None:
        """End the span now, with the status for ``error``."""
        gone = error is not None and self.recording.cancelled
        span.error = told(error)
        span.end = max(span.begin, self.recording.now())
        span.status = "cancelled" if gone else status_of(error)

    def wait(self) -> TraceSpan:
        """Add a span for the program's wait for this lane; the caller closes the span."""
        return self.add("wait", "wait")


class Visit:
    """Record of a node's visit. Its span begins with the first call, or when the visit has written
    text of an earlier call."""

    def __init__(
        self, track: Track, names: Sequence[str], location: Location, stream: Stream
    ) -> None:
        self.track, self._names, self._location, self._stream = track, names, location, stream
        self._before = len(stream.segments)
        self.span: TraceSpan | None = None

    def __enter__(self) -> Visit:
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: object) -> None:
        written = [s for s in self._stream.segments[self._before :] if s.kind != "media"]
        if written and self.span is None:
            self._begin("gen")
        if (span := self.span) is None:
            return
        text = self._stream.text
        outputs = [
            {
                "name": segment.name or "",
                "text": text[segment.start : segment.end][:TEXT_CHARS],
                "chars": segment.end - segment.start,
                "reused": bool(isinstance(segment.meta, dict) and segment.meta.get("speculated")),
            }
            for segment in written
        ]
        span.data["outputs"] = outputs
        span.name = ", ".join(segment.name for segment in written if segment.name) or span.name
        self.track.close(span, error)

    def _begin(self, kind: str) -> TraceSpan:
        span = self.span = self.track.add(kind, ", ".join(self._names))
        span.source, span.code = place(self._location)
        return span

    @contextmanager
    def asking(self, backend: Backend, call: Call | ToolInvocation) -> Iterator[RecordedCall]:
        """Record a call that is made inside the context. The caller makes the yielded ``call``
        and sets ``answer``."""
        span = self.span
        if span is None:
            kinds = {Choose: "select", Commit: "commit", ToolInvocation: "tool"}
            span = self._begin(kinds.get(type(call), "gen"))
            span.data.update(_described(call))
        asked = RecordedCall(self.track, span, backend.name, call)
        token = OBSERVER.set(asked)
        try:
            yield asked
        except BaseException as error:
            asked.end(error)
            raise
        else:
            asked.end(None)
        finally:
            OBSERVER.reset(token)


class RecordedCall:
    """Record of a call in flight: the ``CallObserver`` of its backend.

    A backend that sends several requests for a call records each request. For other backends the
    call counts as one request.
    """

    def __init__(
        self, track: Track, node: TraceSpan, backend: str, call: Call | ToolInvocation
    ) -> None:
        self._track, self._node, self._backend = track, node, backend
        self._begin = track.recording.now()
        self._first: float | None = None
        # True if requests are recorded separately: a tool's requests are its function's calls.
        self._records = isinstance(call, ToolInvocation)
        # The span is made now, so that an open call is shown. A commit may send no request.
        self._span = None if isinstance(call, (Commit, ToolInvocation)) else self._sent()
        self.answer: Any = None
        self.call = call
        if isinstance(call, StreamCall):
            self._show = call.show
            self.call = dataclasses.replace(call, show=self._timed)

    def _timed(self, so_far: Completion) -> None:
        if self._first is None and so_far.text:
            self._first = self._track.recording.now()
        self._show(so_far)

    def _sent(self) -> TraceSpan:
        return self._track.add("request", self._backend, self._node)

    @property
    def traceparent(self) -> str:
        """Header that makes the server's spans children of the latest request's span; "" if the
        trace is not exported."""
        trace = self._track.recording.trace
        if trace.otel is None or self._span is None or not self._records:
            return ""
        return f"00-{trace.trace_id}-{self._span.number:016x}-01"

    @contextmanager
    def request(self) -> Iterator[RecordedCall]:
        """Record a request that is made inside the context; the caller sets ``answer``."""
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
        """End the call, as one request if the backend has recorded none."""
        idle = self._span is None and error is None and not self.answer
        if self._records or idle:
            return
        span = self._span or self._sent()
        span.begin = self._begin
        self._close(span, error)

    def _close(self, span: TraceSpan, error: BaseException | None) -> None:
        self._track.close(span, error)
        several = isinstance(self.call, Choose)
        assert span.end is not None
        span.data.update(facts_of(self.answer, several, span.begin, span.end, self._first))


def _described(call: Call | ToolInvocation) -> dict[str, Any]:
    """Return the call's prompt and parameters, shortened."""
    if isinstance(call, ToolInvocation):
        of = "\n".join(call.arguments)[-PROMPT_CHARS:]
        return {"prompt": of, "params": {"tool": call.node.tool}}
    prompt = call.prompt
    found: dict[str, Any] = {
        "prompt": prompt.text[-PROMPT_CHARS:],
        "prompt_chars": len(prompt.text),
    }
    if isinstance(call, Choose):
        found["params"] = {"options": _repr.repr(list(call.options))}
    elif not isinstance(call, Commit):
        found["params"] = {name: _repr.repr(v) for name, v in chosen(call.params).items()}
        # For the exports: numeric parameters that JSON and 64 bits can represent.
        found["sampling"] = {
            name: value
            for name in ("max_new_tokens", "temperature", "top_p", "seed", "n")
            if isinstance(value := getattr(call.params, name), (int, float))
            and -(2**63) <= value < 2**63
        }
    return found


def status_of(error: BaseException | None) -> str:
    """ "ok", "error" or "cancelled"."""
    if error is None:
        return "ok"
    return "cancelled" if isinstance(error, CANCELS) else "error"


def told(error: BaseException | None) -> str:
    """Return type and message of an error, "" for None."""
    if error is None:
        return ""
    return f"{type(error).__name__}: {error}"[:ERROR_CHARS]


def place(location: Location) -> tuple[str, str]:
    """Return ``file:line`` and the source text of that line."""
    code = linecache.getline(location.filename, location.line).strip()
    return (str(location) if location.filename else ""), code[:PROMPT_CHARS]


class _Short(reprlib.Repr):
    """Representations of at most about 100 characters."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 100


_repr = _Short()
