"""Recursion of thought: a problem that is too long is cut in two, and the halves are solved by
contexts of their own, down to a depth; their answers are put together.

The task here is the sum of numbers. A context holds the instructions and its own problem, never
those of others. Arguments: most tokens of an answer, the deepest recursion, the numbers.
"""

from __future__ import annotations

import asyncio
import re

from sglang.inferlet import Context, Ctx
from sglang.inferlet.samplers import at_text

TASK = "Sums.\n1 + 2 = 3\n4 + 4 = 8\n10 + 5 = 15\n"
DEFAULT = ("6", "5", "3", "4", "1", "6", "2")


class Solver:
    """Contexts of one task. ``prompts``: those that were solved, in order of their beginning."""

    def __init__(self, root: Context, most: int, deepest: int) -> None:
        self.root, self.most, self.deepest = root, most, deepest
        self.prompts: list[str] = []
        self.branches = 0

    async def solve(self, numbers: list[str], depth: int = 0) -> str:
        """The model's sum of numbers; more than two are cut in two."""
        self.branches += 1
        if len(numbers) == 1:
            return numbers[0]
        if len(numbers) == 2 or depth >= self.deepest:
            return await self.think(numbers)
        half = len(numbers) // 2
        parts = await asyncio.gather(
            self.solve(numbers[:half], depth + 1), self.solve(numbers[half:], depth + 1)
        )
        return await self.think(list(parts))

    async def think(self, numbers: list[str]) -> str:
        """The model's answer to one problem."""
        prompt = f"{' + '.join(numbers)} ="
        self.prompts.append(prompt)
        [text] = await self.root.fork()
        await text.fill(prompt)
        answer = await text.generate_until(self.most, stop=at_text("\n"))
        await text.free()
        found = re.search(r"-?\d+", answer)
        return found[0] if found else "0"


async def main(ctx: Ctx) -> str:
    most, deepest, *numbers = ctx.get_arg() or DEFAULT
    solver = Solver(await Context(ctx).fill(TASK), int(most), int(deepest))
    answer = await solver.solve(numbers)
    await solver.root.free()
    return answer
