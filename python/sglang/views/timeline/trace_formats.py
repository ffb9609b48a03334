"""Formats: conversion of a trace to text: html, json, chrome, otlp-json."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from sglang.run.trace_record import TraceRecord


def save(trace: TraceRecord, path: str | os.PathLike[str], format: str | None = None) -> None:
    """Write a trace to a file. ``format``: default: by the path's ending.

    Raise ValueError for an unknown format, and OSError.
    """
    text = written(trace, format or format_of(path))
    Path(path).write_text(text, encoding="utf-8")


def format_of(path: str | os.PathLike[str]) -> str:
    """Return the format for a path's ending. Raise ValueError for other endings."""
    ending = Path(path).suffix.lower()
    if ending not in (".html", ".json"):
        raise ValueError(
            f"a trace is written to a file that ends in .html or .json, not {os.fspath(path)!r}"
        )
    return ending[1:]


def written(trace: TraceRecord, format: str) -> str:
    """Return the trace as text of a format. Raises ValueError for an unknown format."""
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; give one of {', '.join(FORMATS)}")
    return FORMATS[format](trace)


def _html(trace: TraceRecord) -> str:
    from sglang.views.timeline.timeline_page import page_of

    return page_of(trace)


def _json(trace: TraceRecord) -> str:
    return json.dumps(trace.to_dict(), ensure_ascii=True, separators=(",", ":"), default=repr)


def _chrome(trace: TraceRecord) -> str:
    from sglang.views.timeline.chrome import chrome_trace

    return json.dumps(chrome_trace(trace), ensure_ascii=True, separators=(",", ":"), default=repr)


def _otlp(trace: TraceRecord) -> str:
    from sglang.views.timeline.otlp import otlp_json

    return json.dumps(otlp_json(trace), ensure_ascii=True, separators=(",", ":"), default=repr)


FORMATS: dict[str, Callable[[TraceRecord], str]] = {
    "html": _html, "json": _json, "chrome": _chrome, "otlp-json": _otlp,
}  # fmt: skip
