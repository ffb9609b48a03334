"""Hierarchical attention: a token sees its own block, and of each earlier block the last token.

Arguments: the prompt, most tokens, tokens of a block.
"""

from __future__ import annotations

from sglang.inferlet import Context, Ctx

DEFAULT = ("The weather today is fine and the farmer walks along the river.", "16", "6")


async def main(ctx: Ctx) -> dict[str, object]:
    prompt, most, size = ctx.get_arg() or DEFAULT
    block = int(size)
    text = await Context(ctx).fill(prompt)
    start, freed, done = len(text.tokens), 0, 0
    await text.flush(lambda i, j: i // block == j // block or j % block == block - 1)
    for _ in range(int(most)):
        while (done + 1) * block <= text.computed:  # a whole block: its last token stands for it
            freed += text.drop(done * block, (done + 1) * block - 1)
            done += 1
        token = await text.sample({"temperature": 0})
        if token in ctx.eos:
            break
        text.extend([token])
    answer = {"text": await text.text(start), "freed": freed, "held": len(text.pages)}
    await text.free()
    return answer
