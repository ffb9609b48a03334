"""Skeleton of thought: a list of points first, then all points at once.

The question is computed once; the points are forks of it. Arguments: the question, points, most
tokens of a point's heading, most tokens of its text.
"""

from __future__ import annotations

import asyncio

from sglang.inferlet import Context, Ctx
from sglang.inferlet.samplers import at_text

DEFAULT = ("User: How does one walk along a river?\nAssistant:", "3", "8", "16")


async def heading(text: Context, number: int, most: int) -> str:
    """The next point of the skeleton, at the end of the text."""
    await text.fill(f"\n{number}.")
    return (await text.generate_until(most, stop=at_text("\n"))).strip()


async def expand(text: Context, number: int, point: str, most: int) -> str:
    """One point in full, from a fork of the question."""
    await text.fill(f"\nPoint {number}: {point}.")
    answer = await text.generate_until(most, stop=at_text("\n"))
    await text.free()
    return answer.strip()


async def main(ctx: Ctx) -> list[tuple[str, str]]:
    question, count, short, long = ctx.get_arg() or DEFAULT
    root = await Context(ctx).fill(question)
    [skeleton] = await root.fork()
    points = [await heading(skeleton, number + 1, int(short)) for number in range(int(count))]
    await skeleton.free()
    texts = await asyncio.gather(
        *(
            expand(text, number + 1, point, int(long))
            for (number, point), text in zip(enumerate(points), await root.fork(len(points)))
        )
    )
    await root.free()
    return list(zip(points, texts))
