"""Answer facts: token counts and times of a request, extracted from its reply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from sglang.backend.base import Completion
from sglang.ir.choices import Decision

# Counts of a prompt, and of each completion, by their names in meta_info and in a trace.
READ = ("prompt_tokens", "cached_tokens")
WRITTEN = ("completion_tokens", "forced_tokens", "drafted_tokens", "accepted_tokens",
           "forward_passes")  # fmt: skip
COUNTS = (*READ, *WRITTEN, "retractions")
MOST = 10**12  # no request has as many tokens, or takes as many seconds


def facts_of(
    answer: Any, several: bool, begin: float, end: float, first: float | None
) -> dict[str, Any]:
    """Return a request's facts by name; unknown ones are left out. ``several``: each answer has its
    own prompt, else all share one. ``first``: time when the client received the first text."""
    metas = list(metas_of(answer))
    found: dict[str, Any] = {}
    together = sum if several else max
    for name in READ:
        if values := _counts(metas, name):
            found[name] = together(values)
    for name in WRITTEN:
        if values := _counts(metas, name):
            found[name] = sum(values)
    if len(metas) > 1:
        found["rows"] = len(metas)
    reasons = sorted({reason for meta in metas if (reason := _reason(meta))})
    if reasons:
        found["finish"] = ", ".join(reasons)
    spans = [meta["spans"] for meta in metas if isinstance(meta.get("spans"), Mapping)]
    found.update(_placed(spans, begin, end))
    if first is not None:
        found.setdefault("first", first)
    return found


def metas_of(answer: Any) -> Sequence[Mapping[str, Any]]:
    """Return the meta_infos of an answer of any backend."""
    if isinstance(answer, list):
        return [meta for item in answer for meta in metas_of(item)]
    if isinstance(answer, Completion):
        return [answer.meta]
    if isinstance(answer, Decision):
        return [answer.meta.get("usage") or {}]
    if isinstance(answer, Mapping):
        meta = answer.get("meta_info", answer)
        return [meta] if isinstance(meta, Mapping) else []
    return []


def _counts(metas: Sequence[Mapping[str, Any]], name: str) -> list[int]:
    """Return the counts ``name`` of ``metas``. Invalid values of a service are left out."""
    values = [meta.get(name) for meta in metas]
    return [int(value) for value in values if _is_amount(value)]


def _reason(meta: Mapping[str, Any]) -> str:
    reason = meta.get("finish_reason")
    return str((reason.get("type") if isinstance(reason, Mapping) else reason) or "")


def _placed(spans: Sequence[Mapping[str, Any]], begin: float, end: float) -> dict[str, Any]:
    """Convert the server's times to the client's clock, with equal travel times both ways assumed.

    Several completions count from the first one's schedule to the last one's end.
    """
    if not spans:
        return {}
    whole = max(_seconds(span.get("end")) for span in spans)
    received = begin + max(end - begin - whole, 0.0) / 2

    def at(seconds: float) -> float:
        return min(received + seconds, end)

    found: dict[str, Any] = {
        "received": received,
        "scheduled": at(min(_seconds(span.get("scheduled")) for span in spans)),
        "done": at(whole),
    }
    drawn = [span["first_token"] for span in spans if span.get("first_token") is not None]
    if drawn:
        found["first"] = at(min(map(_seconds, drawn)))
    if retractions := sum(_counts(spans, "retractions")):
        found["retractions"] = retractions
    return found


def _seconds(value: Any) -> float:
    """Return a time in seconds, 0 for an invalid value."""
    return float(value) if _is_amount(value) else 0.0


def _is_amount(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < MOST
