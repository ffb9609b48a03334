"""Graph of thought: parts of a document are summarised side by side, and merged two by two.

All prompts begin with the same instructions, which are computed once. Arguments: most tokens of a
summary, the parts of the document.
"""

from __future__ import annotations

import asyncio

from sglang.inferlet import Context, Ctx
from sglang.inferlet.samplers import at_text

TASK = "Texts and their short summaries.\n"
DEFAULT = ("12", "The river is wide and cold.", "The farmer walks along it.", "His dog is old.")


class Graph:
    """Thoughts of one task; ``prompts`` are their texts behind the task, for those that look."""

    def __init__(self, root: Context, most: int) -> None:
        self.root, self.most = root, most
        self.prompts: list[str] = []

    async def think(self, prompt: str) -> str:
        """One thought: what the model writes behind the task and the prompt."""
        self.prompts.append(prompt)
        [text] = await self.root.fork()
        await text.fill(prompt)
        thought = await text.generate_until(self.most, stop=at_text("\n"))
        await text.free()
        return thought.strip()

    async def summarise(self, part: str) -> str:
        return await self.think(f"Text: {part}\nSummary:")

    async def merge(self, first: str, second: str) -> str:
        return await self.think(f"Text: {first} {second}\nSummary:")


async def main(ctx: Ctx) -> str:
    most, *parts = ctx.get_arg() or DEFAULT
    graph = Graph(await Context(ctx).fill(TASK), int(most))
    level = list(await asyncio.gather(*(graph.summarise(part) for part in parts)))
    while len(level) > 1:
        merged = await asyncio.gather(
            *(graph.merge(*level[i : i + 2]) for i in range(0, len(level) - 1, 2))
        )
        level = [*merged, *level[len(level) - len(level) % 2 :]]
    await graph.root.free()
    return level[0]
