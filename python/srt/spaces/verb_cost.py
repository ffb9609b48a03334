"""Cost of the verbs of spaces in an engine's step, in the unit of ``core.work.STEP_VERBS``: some 30
nanoseconds."""

from __future__ import annotations

from sglang.srt.core.space_messages import ForwardTokens, SpaceVerb

_BASE = 2048
_ARRAYS = ("handles", "sources", "targets", "tokens")


def space_cost(verb: SpaceVerb) -> int:
    """Return the cost of a verb, by the size of its arrays and of its mask."""
    if isinstance(verb, ForwardTokens):
        size = len(verb.tokens) + len(verb.positions) + len(verb.visible) + len(verb.written)
        size += len(verb.history) + 2 * len(verb.targets)
        return _BASE + size // 4 + 4 * len(verb.mask)
    return _BASE + 2 * sum(len(getattr(verb, name, b"")) for name in _ARRAYS)
