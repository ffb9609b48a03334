"""Prices: dollars per million input, cached and output tokens."""

from __future__ import annotations

from collections.abc import Mapping

PRICES = ("input", "cached", "output")


def checked_prices(prices: Mapping[str, float] | None) -> dict[str, float]:
    """Return the prices as a dict, {} for None. Raises ValueError if ``prices`` is not a mapping, a
    name is unknown, or a price is below zero."""
    if prices is not None and not isinstance(prices, Mapping):
        raise ValueError(f"prices is {prices!r:.60}; give a dict of dollars by name")
    found = dict(prices or {})
    for name, value in found.items():
        if name not in PRICES:
            raise ValueError(f"prices has {name!r}; it may have {', '.join(PRICES)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
            raise ValueError(
                f"the price of {name} is {value!r}; give dollars per million tokens, at least 0"
            )
    return found
