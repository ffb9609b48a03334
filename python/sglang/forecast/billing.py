"""Prices: dollars for a million tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sglang.inspect.prices import checked_prices

if TYPE_CHECKING:
    from sglang.forecast.batch_plan import Plan

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
        """Raises ValueError, naming it, for what is no price or is missing."""
        if prices is None:
            return cls()
        found = checked_prices(prices)
        for name in ("input", "output"):
            if name not in found:
                raise ValueError(f"prices has no {name!r}; give dollars for a million tokens")
        return cls(**found, known=True)

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
