"""Trace record: recorded runs of programs as plain data. Times are seconds since the trace began.

A trace has groups (runs), a group has lanes (the state and its forks), a lane has spans:

    group      one run of a program
      lane     one stream: the state, or a fork of another lane
        span   gen, select, commit: a node that needed the model; inside it its requests
               tool: a function of the program
               wait: the program waited for this lane
"""

from __future__ import annotations

import itertools
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

FORMAT, VERSION = "sglang-trace", 1


@dataclass
class TraceSpan:
    """An activity of a lane, with begin and end.

    Attributes:
        kind: "gen", "select" or "commit" (a node that needed the model), "request" (a request of
            such a node), "tool" (a function of the program), "wait" (the program waits for the
            lane) or "code" (the program itself, derived from the other spans).
        parent: number of the span that contains this one.
        end: None while the span is open.
        status: "ok", "error", "cancelled", or "running".
        source: ``file:line`` of the statement; code: the statement.
        data: for a node ``outputs``, ``prompt`` (its last characters), ``params``; for a request
            its token counts, and the server's times ``received``, ``scheduled``, ``first`` and
            ``done``, if known.
    """

    number: int
    lane: int
    kind: str
    name: str
    begin: float
    end: float | None = None
    parent: int | None = None
    status: str = "running"
    error: str = ""
    source: str = ""
    code: str = ""
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class TraceLane:
    """One stream, fork number ``index`` of the lane ``parent``. ``asked``: time of the program's
    call of fork; ``begin``: time when the parent reached the fork, None before that."""

    number: int
    group: int
    parent: int | None = None
    index: int = 0
    asked: float = 0.0
    begin: float | None = None
    status: str = "ok"
    error: str = ""
    source: str = ""
    code: str = ""


@dataclass
class LaneJoin:
    """Join of ``lanes`` in ``lane``. ``mode``: of ``ForkGroup.join``."""

    lane: int
    lanes: list[int]
    at: float
    mode: str


@dataclass
class TraceGroup:
    """One run. ``parent``: the run that contains it. ``inline``: the program's own thread visited
    the nodes."""

    number: int
    name: str
    arguments: str = ""
    begin: float = 0.0
    end: float | None = None
    parent: int | None = None
    status: str = "running"
    error: str = ""
    inline: bool = False


class TraceRecord:
    """Recorded runs.

    Attributes:
        prices: dollars per million tokens, by "input", "cached" and "output".
        started: ``time.time()`` at the begin of the trace.
        trace_id: id for OpenTelemetry, 32 hexadecimal digits.
        otel: destination of an export, None for none; runtimes then record their own spans.
        numbers: source of the numbers of groups, lanes and spans.
    """

    def __init__(self, prices: dict[str, float]) -> None:
        self.prices = prices
        self.otel: Any = None
        self.groups: list[TraceGroup] = []
        self.lanes: list[TraceLane] = []
        self.joins: list[LaneJoin] = []
        self.spans: list[TraceSpan] = []
        self.started = time.time()
        self.trace_id = secrets.token_hex(16)
        self.numbers = itertools.count(1)
        self._origin = time.monotonic()

    def now(self) -> float:
        """Seconds since the trace began."""
        return time.monotonic() - self._origin

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON. An open part gets the end of its run, or the current time."""
        # Copy referring parts before the parts that they refer to, as programs may add parts now.
        joins = [dict(vars(join)) for join in list(self.joins)]
        seen, lanes = list(self.spans), list(self.lanes)
        now, ends = self.now(), {group.number: group.end for group in list(self.groups)}
        homes = {lane.number: ends.get(lane.group) for lane in lanes}
        spans = [_closed(span, homes.get(span.lane), now) for span in seen]
        groups = [_closed(group, None, now) for group in list(self.groups)]
        return {
            "format": FORMAT,
            "version": VERSION,
            "started": self.started,
            "trace_id": self.trace_id,
            "prices": self.prices,
            "groups": groups,
            "lanes": [dict(vars(lane)) for lane in lanes],
            "joins": joins,
            "spans": spans,
        }


def _closed(part: TraceSpan | TraceGroup, end: float | None, now: float) -> dict[str, Any]:
    """Return the part as a dict. An open part gets the end of its run."""
    found = dict(vars(part))  # asdict would take ten times as long
    if isinstance(part, TraceSpan):
        found["data"] = dict(part.data)
    if found["end"] is None:
        found["end"] = max(part.begin, now if end is None else end)
        found["status"] = "running" if end is None else "cancelled"
    return found
