"""Formats: a trace as text."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.inspect.timeline.trace import Trace


def written(trace: Trace, format: str) -> str:
    """Raises ValueError for a format that does not exist."""
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; give one of {', '.join(FORMATS)}")
    return FORMATS[format](trace)


def _html(trace: Trace) -> str:
    return trace.to_html()


def _json(trace: Trace) -> str:
    return json.dumps(trace.to_dict(), ensure_ascii=True, separators=(",", ":"), default=repr)


def _chrome(trace: Trace) -> str:
    from sglang.inspect.timeline.chrome import chrome_trace

    return json.dumps(chrome_trace(trace), ensure_ascii=True, separators=(",", ":"), default=repr)


def _otlp(trace: Trace) -> str:
    from sglang.inspect.timeline.otlp import otlp_json

    return json.dumps(otlp_json(trace), ensure_ascii=True, separators=(",", ":"), default=repr)


FORMATS: dict[str, Callable[[Trace], str]] = {
    "html": _html, "json": _json, "chrome": _chrome, "otlp-json": _otlp,
}  # fmt: skip
