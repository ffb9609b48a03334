"""Passes: what the executor has been given, and whom it is for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sglang.srt.core.batch import Batch
from sglang.srt.core.request import Request
from sglang.srt.engine.grammar_budget import GrammarBudget


class Part(NamedTuple):
    """Rows ``first`` to ``last`` of a pass, which are one request's. ``tip``: they are all the work
    there was, so that something is drawn or read at their end."""

    request: Request
    first: int
    last: int
    tip: bool


@dataclass(slots=True)
class Pass:
    """A planned pass.

    ``budget``: of its masks. ``adapters``: those of its requests. ``waits``: what follows it
    depends on what it draws, so the next pass cannot be planned before its result is there.
    """

    batch: Batch
    budget: GrammarBudget
    parts: dict[int, Part] = field(default_factory=dict)  # by request id
    adapters: set[int] = field(default_factory=set)
    waits: bool = False
