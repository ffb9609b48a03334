"""Check of texts that engines generated, against one another and against float32.

In bf16 two nearly equal logits may change order, and after the first difference greedy texts go
their own ways. So equality is counted up to there, and every token of a sample of the texts must
be a near tie at worst: float32, fed the same text, may prefer another by at most ``LIMIT``
deviations of its logits.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmark.peers.sides.wire import Request

# Limit of the worst token. A wrong computation makes another token the best: 1 to 4 deviations off.
LIMIT = {"bfloat16": 0.1, "int8": 0.5}


def equal_share(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]]) -> float:
    """Share of tokens before the first difference of each pair of texts, over all texts."""
    same = sum(agreed(a, b) for a, b in zip(ours, theirs, strict=True))
    return same / max(1, sum(map(len, ours)))


def agreed(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the common beginning."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


def wrong_lengths(requests: Sequence[Request], drawn: Sequence[Sequence[int]]) -> list[str]:
    """Mistakes in the numbers of texts and tokens; [] where there are none."""
    if len(requests) != len(drawn):
        return [f"{len(drawn)} texts for {len(requests)} requests"]
    return [
        f"request {i}: {len(ids)} tokens, {count} asked"
        for i, ((_, count), ids) in enumerate(zip(requests, drawn))
        if len(ids) != count
    ]


def sample(requests: Sequence[Request], most: int) -> list[int]:
    """Numbers of at most ``most`` requests, spread over all."""
    step = max(1, len(requests) // max(1, most))
    return list(range(0, len(requests), step))[:most]
