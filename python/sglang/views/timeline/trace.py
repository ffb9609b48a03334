"""Trace: recorded runs, with methods to save, load and export them."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sglang.run.trace_record import (
    FORMAT,
    VERSION,
    LaneJoin,
    TraceGroup,
    TraceLane,
    TraceRecord,
    TraceSpan,
)
from sglang.views.prices import checked_prices
from sglang.views.timeline.verify import part, verify


class Trace(TraceRecord):
    """Recorded runs. ``run(trace=...)`` with a Trace adds the run to it.

    Args:
        prices: dollars per million tokens, by "input", "cached" and "output".
    """

    def __init__(self, prices: Mapping[str, float] | None = None) -> None:
        super().__init__(checked_prices(prices))

    def save(self, path: str | os.PathLike[str], format: str | None = None) -> None:
        """Write the trace. ``format``: "html", "json" (for ``Trace.load``), "chrome" or
        "otlp-json"; default: by the path's ending. Raise ValueError and OSError."""
        from sglang.views.timeline.trace_formats import save

        save(self, path, format)

    def to_html(self) -> str:
        """Return the trace as one HTML page, which loads no other file."""
        from sglang.views.timeline.timeline_page import page_of

        return page_of(self)

    @classmethod
    def from_dict(cls, data: Any) -> Trace:
        """Return the trace of data that ``to_dict`` made. Raise ValueError for other data."""
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise ValueError("this is no recorded trace; run(..., trace='run.json') makes one")
        if data.get("version") != VERSION:
            raise ValueError(
                f"the trace has version {data.get('version')!r}, this release reads {VERSION}"
            )
        try:
            trace = cls(data["prices"])
            trace.started, trace.trace_id = float(data["started"]), str(data["trace_id"])
            trace.groups = [part(TraceGroup, item) for item in data["groups"]]
            trace.lanes = [part(TraceLane, item) for item in data["lanes"]]
            trace.joins = [part(LaneJoin, item) for item in data["joins"]]
            trace.spans = [part(TraceSpan, item) for item in data["spans"]]
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"the trace is damaged: {error!r}") from error
        verify(trace)
        parts: tuple[TraceGroup | TraceLane | TraceSpan, ...] = (
            *trace.groups,
            *trace.lanes,
            *trace.spans,
        )
        trace.numbers = itertools.count(1 + max((one.number for one in parts), default=0))
        return trace

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read a trace that was saved as JSON. Raises OSError, or ValueError for another file."""
        try:
            text = Path(path).read_text(encoding="utf-8")
            data = json.loads(text, parse_constant=_refused)
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{os.fspath(path)!r} is no JSON: {error}") from error
        return cls.from_dict(data)

    def export_otel(self, to: Any) -> None:
        """Send the trace as OpenTelemetry spans. ``to``: URL of a collector, or a span processor.
        Needs the extra ``otel``. Raises Unsupported and ValueError."""
        from sglang.views.timeline.otel import export

        export(self, to)

    def totals(self) -> dict[str, Any]:
        """Return sums over all runs; see ``trace_view``."""
        from sglang.views.timeline.trace_view import view_of

        found: dict[str, Any] = view_of(self)["totals"]
        return found

    def _repr_html_(self) -> str:
        """Return the page in a frame, for a notebook."""
        from html import escape

        style = "width:100%;height:36em;border:1px solid #8888"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(self.to_html())}">'

    def __repr__(self) -> str:
        return f"Trace(runs={len(self.groups)}, lanes={len(self.lanes)}, spans={len(self.spans)})"


def _refused(name: str) -> float:
    """Raise ValueError for NaN and infinity, which valid JSON does not have."""
    raise ValueError(f"the trace is damaged: {name} is no number")
