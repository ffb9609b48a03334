"""Comparison: a plan beside what has happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from sglang.run.usage import Usage

if TYPE_CHECKING:
    from sglang.forecast.batch_plan import Plan


class Compared(NamedTuple):
    """A count as it was planned and as it came."""

    name: str
    planned: int
    happened: int

    @property
    def error(self) -> float:
        """How far the plan was off, as a share of what happened."""
        return (self.planned - self.happened) / (self.happened or 1)


@dataclass(frozen=True)
class Comparison:
    """Counts of the items, as their states tell them: without what is computed ahead of a batch."""

    rows: tuple[Compared, ...]

    @classmethod
    def of(cls, plan: Plan, used: Sequence[Usage]) -> Comparison:
        calls = [call for call in plan.calls if call.item is not None]
        prompt = sum(call.prompt_tokens for call in calls)
        cached = sum(call.told_cached for call in calls)
        drawn = sum(call.completion_tokens for call in calls)
        was_prompt = sum(usage.prompt_tokens for usage in used)
        was_cached = sum(usage.cached_tokens for usage in used)
        return cls(
            (
                Compared("prompt tokens", prompt, was_prompt),
                Compared("cached", cached, was_cached),
                Compared("computed", prompt - cached, was_prompt - was_cached),
                Compared("generated", drawn, sum(usage.completion_tokens for usage in used)),
            )
        )

    @property
    def error(self) -> float:
        """Of the tokens to compute: how far the plan was off, as a share of what happened."""
        return next(row.error for row in self.rows if row.name == "computed")

    def __str__(self) -> str:
        lines = [f"{'':13}  {'planned':>10}  {'happened':>10}"]
        for row in self.rows:
            off = "" if row.name == "generated" else f"  {100 * row.error:+.2f} %"
            most = " (at most)" if row.name == "generated" else ""
            lines.append(f"{row.name:13}  {row.planned:>10,}  {row.happened:>10,}{off}{most}")
        return "\n".join(lines)

    __repr__ = __str__
