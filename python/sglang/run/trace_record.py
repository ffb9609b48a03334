"""Trace record: what runs of programs did, as plain data. Times are seconds since the trace began.

A trace has a group for each run, a group lanes (the state and its forks), a lane spans:

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
    """Something that took time.

    Attributes:
        kind: "gen", "select" or "commit" (a node that needed the model), "request" (what was sent
            for it), "tool" (a function of the program), "wait" (of the program, for the lane) or
            "code" (the program itself, derived).
        parent: number of the span that this one is inside of.
        end: None while it goes on.
        status: "ok", "error", "cancelled", or "running".
        source: ``file:line`` of the statement; code: the statement.
        data: of a node ``outputs``, ``prompt`` (its end), ``params``; of a request its tokens, and
            the times ``received``, ``scheduled``, ``first`` and ``done`` at the server, as far as
            they are known.
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
    """One stream. ``parent`` is the lane that it was forked from, as its ``index``-th fork;
    ``asked`` when the program said so, ``begin`` when the parent had got there, None until then."""

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
    """``lanes`` came together in ``lane``. ``mode`` is that of ``ForkGroup.join``."""

    lane: int
    lanes: list[int]
    at: float
    mode: str


@dataclass
class TraceGroup:
    """One run. ``parent``: the run that it was inside of. ``inline``: nodes were visited by the
    program's own thread."""

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
        started: seconds of the wall clock at time 0.
        trace_id: OpenTelemetry's, 32 hexadecimal digits.
        otel: destination that the trace will be sent to; runtimes then record their own spans.
        numbers: numbers of groups, lanes and spans.
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
        """Plain data, for JSON. What still goes on is given the end of its run, or now."""
        # Parts that refer to others first: those exist before, also while programs run.
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
