"""Ways: the same select by a tree of options, by a request for each, and without scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from sglang import Engine
from sglang.backend.base import Prompt
from sglang.ir.choices import METHODS, Decision

WAYS: Mapping[str, tuple[str, bool]] = {
    "tree": ("token_length_normalized", True),
    "rows": ("token_length_normalized", False),
    "constrained": ("constrained_decoding", True),
}
"""Method and ``scores_options`` of each way."""
ROWS = 2000  # options that requests of their own are made for
NUMBERS = "normalized_prompt_logprobs"


class Differs(AssertionError):
    """A tree's numbers, or its decision, are not those of the rows."""


@dataclass
class Selected:
    """One select: its seconds, and what was decided."""

    seconds: float
    decision: Decision

    @property
    def computed(self) -> int:
        """Prompt tokens that were computed."""
        usage = self.decision.meta["usage"]
        return int(usage["prompt_tokens"] - usage["cached_tokens"])


def select(engine: Engine, way: str, text: str, options: Sequence[str]) -> Selected:
    """One select; only the prompt may be in the cache."""
    name, engine.scores_options = WAYS[way]
    engine.flush_cache()
    engine.cache_prefix(text)
    begun = perf_counter()
    decision = engine.choose(Prompt(text), options, METHODS[name])
    return Selected(perf_counter() - begun, decision)


def verify(tree: Selected, rows: Selected, tolerance: float) -> float:
    """Return the largest difference of two log-probabilities. Raise Differs where it is above
    ``tolerance``, or where they were decided on and the decision is another one."""
    ours, theirs = _values(tree.decision.meta), _values(rows.decision.meta)
    if len(ours) != len(theirs):
        raise Differs(f"{len(ours)} log-probabilities, not {len(theirs)}")
    largest = max(abs(a - b) for a, b in zip(ours, theirs))
    if largest > tolerance:
        raise Differs(f"a log-probability differs by {largest:g}; at most {tolerance:g}")
    if not largest and tree.decision.text != rows.decision.text:
        raise Differs(f"{tree.decision.text!r} was taken, not {rows.decision.text!r}")
    return largest


def _values(meta: Mapping[str, Any]) -> list[float]:
    return [entry[0] or 0.0 for row in meta["input_token_logprobs"] for entry in row]
