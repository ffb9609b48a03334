"""Show: results as lines and as JSON, by upstream's names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sglang.srt.commands.bench.stats import Spread, Summary

WIDTH = 50
_SPREADS = {
    "e2e_latency": ("End-to-End Latency", "E2E Latency"),
    "ttft": ("Time to First Token", "TTFT"),
    "tpot": ("Time per Output Token (excl. 1st token)", "TPOT"),
    "itl": ("Inter-Token Latency", "ITL"),
}
_PARTS = {"mean": "mean", "median": "p50", "p99": "p99", "max": "max"}


def lines(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """A title between signs, a line a row, and a closing line."""
    return "\n".join([f"{f' {title} ':=^{WIDTH}}", *(_line(*row) for row in rows), "=" * WIDTH])


def _line(name: str, value: object) -> str:
    shown = f"{value:.2f}" if isinstance(value, float) else str(value)
    return f"{name + ':':<40} {shown:<10}".rstrip() if name else str(value)


def figures(summary: Summary) -> dict[str, Any]:
    """The figures of a run by upstream's names; milliseconds are marked, None is unknown."""
    found: dict[str, Any] = {
        "completed": summary.completed,
        "failed": summary.failed,
        "duration": summary.seconds,
        "total_input_tokens": summary.prompt_tokens,
        "total_output_tokens": summary.output_tokens,
        "total_cached_tokens": summary.cached_tokens,
        "request_throughput": summary.request_rate,
        "input_throughput": summary.input_rate,
        "output_throughput": summary.output_rate,
        "total_throughput": summary.input_rate + summary.output_rate,
        "concurrency": summary.concurrency,
    }
    for name, spread in _spreads(summary):
        for part, field in _PARTS.items():
            value = None if spread is None else getattr(spread, field)
            found[f"{part}_{name}_ms"] = value
    return found


def _spreads(summary: Summary) -> list[tuple[str, Spread | None]]:
    return [("e2e_latency", summary.latency), ("ttft", summary.ttft), ("tpot", summary.tpot),
            ("itl", summary.itl)]  # fmt: skip


def serving_rows(summary: Summary) -> list[tuple[str, object]]:
    """The lines of a serving benchmark."""
    rows: list[tuple[str, object]] = [
        ("Successful requests", summary.completed),
        ("Benchmark duration (s)", summary.seconds),
        ("Total input tokens", summary.prompt_tokens),
        ("Total generated tokens", summary.output_tokens),
        ("Request throughput (req/s)", summary.request_rate),
        ("Input token throughput (tok/s)", summary.input_rate),
        ("Output token throughput (tok/s)", summary.output_rate),
        ("Total token throughput (tok/s)", summary.input_rate + summary.output_rate),
        ("Concurrency", summary.concurrency),
    ]
    if summary.failed:
        rows.insert(1, ("Failed requests", summary.failed))
    if summary.cached_tokens is not None:
        rows.insert(-1, ("Total cached tokens", summary.cached_tokens))
    for name, spread in _spreads(summary):
        title, short = _SPREADS[name]
        rows.append(("", f"{title:-^{WIDTH}}"))
        for part, field in _PARTS.items():
            value = "-" if spread is None else getattr(spread, field)
            rows.append((f"{part.capitalize()} {short} (ms)", value))
    return rows
