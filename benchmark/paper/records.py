"""Records: what a run has measured, a line of JSON each, and the few that the page is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmark.harness.records import append, read, write
from benchmark.paper.plan import COMPLETE, Record

KEY = ("table", "claim", "mode", "side")


class Log:
    """A file of records that grows: each is there as soon as it is given, with the part that it
    belongs to."""

    def __init__(self, path: Path, again: bool) -> None:
        """``again``: after what the file has; else the file begins anew."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.records: list[Record] = read(path) if again and path.exists() else []
        write(path, self.records)
        self._path, self._part = path, ""

    def tell(self, record: Record) -> None:
        self._part = record.get("part", self._part)
        record = {"part": self._part, **record} if self._part else record
        self.records.append(record)
        append(self._path, record)


def of_run(table: str, run: Record, more: Record) -> Record:
    """The report's part of a run's record from ``harness.turns``, for one of its tables.
    ``latency`` is the mean over the items, in seconds."""
    latencies = run["latencies"]
    found = {name: run.get(name) for name in _KEPT}
    return {
        "kind": "run", "table": table, **found, "rate": _short(run["rate"]),
        "latency": _short(fmean(latencies)) if latencies else None, **more,
    }  # fmt: skip


def _short(value: float) -> float:
    """Five digits: more are noise."""
    return float(f"{value:.5g}")


def condensed(records: Sequence[Record]) -> list[Record]:
    """Records that the page is made of: of each part those since its last beginning, the runs of a
    side on a claim in one record, its values by round. Condensed records stay as they are."""
    out: list[Record] = []
    merged: dict[tuple[Any, ...], Record] = {}
    for record in _last(records):
        if record["kind"] != "run":
            out.append(record)
            continue
        key = tuple(record[name] for name in KEY)
        if key not in merged:
            shared = {name: value for name, value in record.items() if name not in _VARYING}
            merged[key] = {**shared, "kind": "runs", "rounds": []}
            out.append(merged[key])
        kept = {name: record[name] for name in _VARYING if record.get(name) is not None}
        merged[key]["rounds"].append(kept)
    return out


_KEPT = ("claim", "mode", "side", "round", "items", "prompt_tokens", "cached_tokens",
         "completion_tokens", "accuracy", "equal")  # fmt: skip
_VARYING = ("round", "rate", "latency", "hit_rate", "batch", "first_token")


def _last(records: Sequence[Record]) -> Iterable[Record]:
    """Drop the records of a part from before it was begun again."""
    begun = {r["part"]: i for i, r in enumerate(records) if _is(r, "begun")}
    for at, record in enumerate(records):
        if at >= begun.get(record.get("part", ""), 0) and not _is(record, "begun"):
            yield record


def complete(records: Sequence[Record]) -> set[str]:
    """Names of the parts that need not be measured again."""
    last = {r["part"]: r["state"] for r in records if r["kind"] == "part"}
    return {name for name, state in last.items() if state == COMPLETE}


def _is(record: Record, state: str) -> bool:
    return bool(record["kind"] == "part" and record["state"] == state)
