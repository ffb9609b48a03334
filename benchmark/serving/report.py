"""Report: checks of the answers, the table, the JSON line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sglang.srt.commands.bench.result import Result
from sglang.srt.commands.bench.stats import Spread, Summary
from sglang.srt.commands.bench.workload import Conversation

from benchmark.harness.tables import columns as lined_up


def problems(
    conversations: Sequence[Conversation], results: Sequence[Result], exact: bool
) -> list[str]:
    """Faults in the answers of one run, [] if there are none.

    ``exact`` also wants the requested number of tokens. Every turn must have been answered once.
    """
    found = [f"request {r.key}: {r.error}" for r in results if r.error]
    wanted = {(c.number, turn) for c in conversations for turn in range(len(c.turns))}
    answered = [r.key for r in results]
    if len(answered) != len(set(answered)):
        found.append("a request was answered twice")
    if missing := wanted - set(answered):
        found.append(f"{len(missing)} of {len(wanted)} requests were never sent: {min(missing)}")
    for r in results:
        if exact and not r.error and r.output_tokens != r.asked:
            found.append(f"request {r.key}: {r.output_tokens} tokens drawn, {r.asked} asked")
    return found


@dataclass(frozen=True)
class Comparison:
    """Answers of two runs on the same work; ``by`` is what was compared, "ids" or "text"."""

    same: int
    total: int
    by: str
    first: str = ""  # the first difference, in words

    def __str__(self) -> str:
        line = f"{self.same} of {self.total} answers equal (by {self.by})"
        return line if self.same == self.total else f"{line}; first difference: {self.first}"


def compare(a: Sequence[Result], b: Sequence[Result]) -> Comparison:
    """Answers with an error on either side, or missing on one, count as different."""
    ours, theirs = ({r.key: r for r in results} for results in (a, b))
    keys = sorted(ours.keys() | theirs.keys())
    by = "ids" if all(r.ids for r in (*a, *b) if not r.error) else "text"
    same, first = 0, ""
    for key in keys:
        left, right = ours.get(key), theirs.get(key)
        if left and right and not left.error and not right.error:
            if (left.ids == right.ids) if by == "ids" else (left.text == right.text):
                same += 1
                continue
            shown = [list(r.ids[:24]) if by == "ids" else r.text[:80] for r in (left, right)]
        else:
            shown = [r.error or "answered" if r else "missing" for r in (left, right)]
        first = first or f"{key}: {shown[0]!r} against {shown[1]!r}"
    return Comparison(same, len(keys), by, first)


def table(columns: Sequence[tuple[str, Summary]]) -> str:
    """One column a target, one line a quantity; the caller prints the ratios."""
    rows: list[list[str]] = [["", *(name for name, _ in columns)]]
    for label, show in _LINES:
        rows.append([label, *(show(summary) for _, summary in columns)])
    for label, name in _SPREADS:
        for part in ("mean", "p50", "p90", "p99"):
            cells = [_part(getattr(summary, name), part) for _, summary in columns]
            if any(cell != "-" for cell in cells):
                rows.append([f"{label} {part} (ms)", *cells])
    return lined_up(rows)


def _part(spread: Spread | None, part: str) -> str:
    return "-" if spread is None else f"{getattr(spread, part):.2f}"


def _hits(summary: Summary) -> str:
    return "-" if summary.hit_rate is None else f"{100 * summary.hit_rate:.1f} %"


_LINES = (
    ("completed / failed", lambda s: f"{s.completed} / {s.failed}"),
    ("duration (s)", lambda s: f"{s.seconds:.3f}"),
    ("requests/s", lambda s: f"{s.request_rate:.2f}"),
    ("input tokens/s", lambda s: f"{s.input_rate:.1f}"),
    ("output tokens/s", lambda s: f"{s.output_rate:.1f}"),
    ("cache hit rate", _hits),
    ("mean concurrency", lambda s: f"{s.concurrency:.1f}"),
    ("generator CPU", lambda s: f"{100 * s.generator_cpu:.0f} %"),
)
_SPREADS = (
    ("TTFT", "ttft"),
    ("TPOT", "tpot"),
    ("ITL", "itl"),
    ("latency", "latency"),
    ("sent late", "lag"),
)
