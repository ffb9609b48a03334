"""Prices: dollars for a million tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sglang.plan.planned import Plan

NAMES = ("input", "cached", "output")
SHORTEST, STEP = 1024, 128  # of a hit in the caches of API services, which round down
MILLION = 1_000_000


@dataclass(frozen=True)
class Prices:
    """``cached`` None: the service has no lower price for what is in its cache, or its cache is
    left out of account."""

    input: float = 0.0
    output: float = 0.0
    cached: float | None = None
    known: bool = False

    @classmethod
    def of(cls, prices: Mapping[str, float] | None) -> Prices:
        """Raises ValueError, naming it, for what is no price."""
        if prices is None:
            return cls()
        if not isinstance(prices, Mapping):
            raise ValueError(f"prices is {prices!r:.60}; give a dict of dollars by name")
        for name, value in prices.items():
            if name not in NAMES:
                raise ValueError(f"prices has {name!r}; give some of {', '.join(NAMES)}")
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not 0 <= value < inf:
                raise ValueError(f"the price of {name} is {value!r}; give dollars, at least 0")
        missing = [name for name in ("input", "output") if name not in prices]
        if missing:
            raise ValueError(f"prices has no {missing[0]!r}; give dollars for a million tokens")
        return cls(prices["input"], prices["output"], prices.get("cached"), True)

    def hit(self, tokens: int) -> int:
        """What a service counts of a prefix that it has read before."""
        if self.cached is None or tokens < SHORTEST:
            return 0
        return tokens - tokens % STEP

    def cost(self, plan: Plan) -> float | None:
        """In dollars; None where nothing is known of prices."""
        if not self.known:
            return None
        cached = self.input if self.cached is None else self.cached
        return (
            plan.computed_tokens * self.input
            + plan.cached_tokens * cached
            + plan.completion_tokens * self.output
        ) / MILLION
