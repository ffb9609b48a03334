"""Watermarking (Kirchenbauer et al.): a token chooses a green half of the vocabulary for the next
one, whose logits are raised by delta. Green tokens are then too many for chance: the z statistic.

Arguments: the prompt, most tokens, delta, seed.
"""

from __future__ import annotations

import math
import random

from sglang.inferlet import Context, Ctx, Dist

SHARE = 0.5  # green part of the vocabulary


def green(before: int, size: int) -> int:
    """The green tokens behind another one, as bits."""
    return random.Random(before).getrandbits(size)


def sample(dist: Dist, before: int, delta: float, chance: random.Random) -> int:
    """A token of the whole distribution with green logits raised."""
    bits = green(before, len(dist)) if delta else 0
    weights = [
        math.exp(value + delta * (bits >> token & 1)) for token, value in enumerate(dist.logprobs)
    ]
    return chance.choices(dist.ids, weights)[0]


def statistic(tokens: list[int], first: int, size: int) -> float:
    """z of the green tokens, of which each has one before it; ``first`` is before the first."""
    pairs = zip([first, *tokens], tokens)
    found = sum(green(before, size) >> token & 1 for before, token in pairs)
    expected = SHARE * len(tokens)
    return (found - expected) / math.sqrt(len(tokens) * SHARE * (1 - SHARE))


async def main(ctx: Ctx) -> dict[str, object]:
    prompt, most, delta, seed = ctx.get_arg() or ("The weather today", "64", "4", "0")
    text = await Context(ctx).fill(prompt)
    start, chance = len(text.tokens), random.Random(int(seed))
    for _ in range(int(most)):
        dist = await text.next_dist(k=-2)
        text.extend([sample(dist, text.tokens[-1], float(delta), chance)])
    tokens = text.tokens[start:]
    z = statistic(tokens, text.tokens[start - 1], ctx.vocab_size)
    return {"text": await text.text(start), "z": z, "tokens": tokens}
