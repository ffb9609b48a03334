"""Prefix tree: prompts that share beginnings, each beginning computed once (section 7.3).

The tree is the program's own: a node holds tokens and the pages of the text up to its end. The
branches of a node go on from its pages. Arguments: most tokens, the prompts.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from sglang.inferlet import Context, Ctx

DEFAULT = ("8", "The farmer has a dog.", "The farmer has a cow and", "The farmer walks", "A day")


@dataclass
class Node:
    """A run of tokens, and what follows it. ``ends``: prompts that end here, by index."""

    tokens: list[int] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    def insert(self, tokens: list[int], prompt: int) -> None:
        """Add a prompt's tokens behind this node; a child that it leaves is split."""
        if not tokens:
            self.ends.append(prompt)
            return
        for child in self.children:
            same = 0
            while same < min(len(tokens), len(child.tokens)) and tokens[same] == child.tokens[same]:
                same += 1
            if same:
                if same < len(child.tokens):
                    child.split(same)
                child.insert(tokens[same:], prompt)
                return
        self.children.append(Node(tokens, [], [prompt]))

    def split(self, length: int) -> None:
        """Keep ``length`` tokens; a new child has the rest, and all that was behind it."""
        rest = Node(self.tokens[length:], self.children, self.ends)
        self.tokens, self.children, self.ends = self.tokens[:length], [rest], []


async def walk(node: Node, text: Context, most: int) -> dict[int, str]:
    """Complete the prompts at and behind a node, by index. The text is freed."""
    text.extend(node.tokens)
    await text.flush(last=not node.ends and bool(node.tokens))
    jobs = [complete(one, most) for one in await text.fork(len(node.ends))]
    branches = [
        walk(child, one, most)
        for child, one in zip(node.children, await text.fork(len(node.children)))
    ]
    texts = dict(zip(node.ends, await asyncio.gather(*jobs)))
    for found in await asyncio.gather(*branches):
        texts |= found
    await text.free()
    return texts


async def complete(text: Context, most: int) -> str:
    answer = await text.generate_until(max_tokens=most)
    await text.free()
    return answer


async def main(ctx: Ctx) -> list[str]:
    most, *prompts = ctx.get_arg() or DEFAULT
    root = Node()
    for index, tokens in enumerate([await ctx.tokenize(one, special=True) for one in prompts]):
        root.insert(tokens, index)
    texts = await walk(root, Context(ctx), int(most))
    return [texts[index] for index in range(len(prompts))]
