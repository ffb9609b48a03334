"""Whether a terminal of llguidance's Lark matches anything, as llguidance itself says."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

PROBE_FUEL = 200_000


@lru_cache(maxsize=4096)
def unmatched(expression: str) -> bool:
    """Whether nothing matches a terminal. False too where that is too much work to tell."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(initial_lexer_fuel=PROBE_FUEL, verbose_errors=False)
    matcher = LLMatcher(_bytes(), f"start: T\nT: {expression}", log_level=0, limits=limits)
    if matcher.is_error():
        return False
    matcher.compute_bitmask()
    return bool(matcher.get_error().startswith("NoExtensionBias"))


@lru_cache(maxsize=1)
def _bytes() -> Any:
    from llguidance import LLTokenizer

    return LLTokenizer("byte", slices=[])
