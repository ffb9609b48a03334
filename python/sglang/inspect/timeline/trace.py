"""Trace: what runs of programs did, as plain data. Times are seconds since the trace began.

A trace has a group for each run, a group lanes (the state and its forks), a lane spans:

    group      one run of a program
      lane     one stream: the state, or a fork of another lane
        span   gen, select, commit: a node that needed the model; inside it its requests
               wait: the program waited for this lane
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang.inspect.prices import checked_prices
from sglang.inspect.timeline.verify import part, verify

FORMAT, VERSION = "sglang-trace", 1


@dataclass
class Span:
    """Something that took time.

    Attributes:
        kind: "gen", "select" or "commit" (a node that needed the model), "request" (what was sent
            for it), "wait" (of the program, for the lane) or "code" (the program itself, derived).
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
class Lane:
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
class Join:
    """``lanes`` came together in ``lane``. ``mode`` is that of ``ForkGroup.join``."""

    lane: int
    lanes: list[int]
    at: float
    mode: str


@dataclass
class Group:
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


class Trace:
    """Recorded runs; hand one to ``run(trace=...)`` to record into it.

    Args:
        prices: dollars per million tokens, by "input", "cached" and "output".

    Attributes:
        started: seconds of the wall clock at time 0.
        trace_id: of OpenTelemetry, 32 hexadecimal digits.
        otel: where ``tracing`` will send it; runtimes are told then whose spans are theirs.
    """

    def __init__(self, prices: Mapping[str, float] | None = None) -> None:
        self.prices = checked_prices(prices)
        self.otel: Any = None
        self.groups: list[Group] = []
        self.lanes: list[Lane] = []
        self.joins: list[Join] = []
        self.spans: list[Span] = []
        self.started = time.time()
        self.trace_id = secrets.token_hex(16)
        self.numbers = itertools.count(1)  # of groups, lanes and spans
        self._origin = time.monotonic()

    def now(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self._origin

    def save(self, path: str | os.PathLike[str], format: str | None = None) -> None:
        """Write it. ``format`` is "html", "json" (to be read by ``Trace.load``), "chrome" or
        "otlp-json"; else the path's ending tells. Raises ValueError and OSError."""
        from sglang.inspect.timeline.formats import written

        text = written(self, format or format_of(path))
        Path(path).write_text(text, encoding="utf-8")

    def to_html(self) -> str:
        """A page that needs nothing else."""
        from sglang.inspect.timeline.timeline_page import page_of

        return page_of(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON. What still goes on is given the end of its run, or now."""
        # What names others first: they are there before it, also while programs run.
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

    @classmethod
    def from_dict(cls, data: Any) -> Trace:
        """What ``to_dict`` gave. Raises ValueError for anything else."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError("this is no recorded trace; run(..., trace='run.json') makes one")
        if data.get("version") != VERSION:
            raise ValueError(
                f"the trace has version {data.get('version')!r}, this release reads {VERSION}"
            )
        try:
            trace = cls(data["prices"])
            trace.started, trace.trace_id = float(data["started"]), str(data["trace_id"])
            trace.groups = [part(Group, item) for item in data["groups"]]
            trace.lanes = [part(Lane, item) for item in data["lanes"]]
            trace.joins = [part(Join, item) for item in data["joins"]]
            trace.spans = [part(Span, item) for item in data["spans"]]
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the trace is damaged: {error!r}") from error
        verify(trace)
        parts: tuple[Group | Lane | Span, ...] = (*trace.groups, *trace.lanes, *trace.spans)
        trace.numbers = itertools.count(1 + max((one.number for one in parts), default=0))
        return trace

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """One that was saved as JSON. Raises OSError and ValueError."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            data = json.loads(text, parse_constant=_refused)
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{os.fspath(path)!r} is no JSON: {error}") from error
        return cls.from_dict(data)

    def export_otel(self, to: Any) -> None:
        """Send it as OpenTelemetry spans to the URL of a collector, or to a span processor. Needs
        the extra ``otel``. Raises Unsupported and ValueError."""
        from sglang.inspect.timeline.otel import export

        export(self, to)

    def totals(self) -> dict[str, Any]:
        """Sums over all runs; see ``view``."""
        from sglang.inspect.timeline.view import view_of

        found: dict[str, Any] = view_of(self)["totals"]
        return found

    def _repr_html_(self) -> str:
        """The page in a frame, for a notebook."""
        from html import escape

        style = "width:100%;height:36em;border:1px solid #8888"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.to_html())}">'

    def __repr__(self) -> str:
        return f"Trace(runs={len(self.groups)}, lanes={len(self.lanes)}, spans={len(self.spans)})"


def format_of(path: str | os.PathLike[str]) -> str:
    """By the ending of a path. Raises ValueError."""
    ending = Path(path).suffix.lower()
    if ending not in (".html", ".json"):
        raise ValueError(
            f"a trace is written to a file that ends in .html or .json, not {os.fspath(path)!r}"
        )
    return ending[1:]


def _closed(part: Span | Group, end: float | None, now: float) -> dict[str, Any]:
    """As a dict, what goes on being ended by the end of its run."""
    found = dict(vars(part))  # asdict would take ten times as long
    if isinstance(part, Span):
        found["data"] = dict(part.data)
    if found["end"] is None:
        found["end"] = max(part.begin, now if end is None else end)
        found["status"] = "running" if end is None else "cancelled"
    return found


def _refused(name: str) -> float:
    """JSON has no NaN and no infinity."""
    raise ValueError(f"the trace is damaged: {name} is no number")
