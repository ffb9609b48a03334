"""Beam search: the most likely texts of a fixed length, or up to an end token.

Beams share the pages of their common beginning. Arguments: the prompt, beams, most tokens.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from sglang.inferlet import Context, Ctx


class Beam(NamedTuple):
    """A text and the sum of its new tokens' log-probabilities."""

    score: float
    text: Context


class Candidate(NamedTuple):
    """A beam with one more token."""

    score: float
    beam: Beam
    token: int


async def candidates(beams: list[Beam], width: int) -> list[Candidate]:
    """The best ``2 * width`` continuations of all beams, best first."""
    dists = await asyncio.gather(*(beam.text.next_dist(2 * width) for beam in beams))
    found = [
        Candidate(beam.score + logprob, beam, token)
        for beam, dist in zip(beams, dists)
        for token, logprob in dist.top(2 * width)
    ]
    return sorted(found, key=lambda one: -one.score)[: 2 * width]


async def advance(chosen: list[Candidate], beams: list[Beam]) -> list[Beam]:
    """The next beams. The first child of a beam takes its pages over, the others fork it."""
    used: set[int] = set()
    grown = []
    for score, beam, token in chosen:
        [text] = [beam.text] if id(beam) not in used else await beam.text.fork()
        used.add(id(beam))
        grown.append((Beam(score, text), token))
    for beam in beams:
        if id(beam) not in used:
            await beam.text.free()
    for beam, token in grown:
        beam.text.extend([token])
    return [beam for beam, _ in grown]


async def main(ctx: Ctx) -> list[tuple[float, str]]:
    prompt, width, count = ctx.get_arg() or ("The weather today", "3", "10")
    size = int(width)
    root = await Context(ctx).fill(prompt)
    start = len(root.tokens)
    beams, ended = [Beam(0.0, root)], list[tuple[float, list[int]]]()
    for step in range(int(count)):
        best = await candidates(beams, size)
        for rank, one in enumerate(best):
            if one.token in ctx.eos and rank < size:
                tokens = [*one.beam.text.tokens[start:], one.token]
                ended.append((one.score / (step + 1), tokens))
        going = [one for one in best if one.token not in ctx.eos][:size]
        beams = await advance(going, beams)
    ended += [
        (beam.score / len(beam.text.tokens[start:]), beam.text.tokens[start:]) for beam in beams
    ]
    ended.sort(key=lambda one: -one[0])
    return [(score, await ctx.detokenize(tokens)) for score, tokens in ended[:size]]
