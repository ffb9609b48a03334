"""Windowed attention (Longformer): a token sees the last ones, and pages behind them are freed.

Arguments: the prompt, most tokens, tokens of the window.
"""

from __future__ import annotations

from sglang.inferlet import Context, Ctx

DEFAULT = ("The weather today is fine and the farmer walks along the river.", "16", "8")


async def main(ctx: Ctx) -> dict[str, object]:
    prompt, most, size = ctx.get_arg() or DEFAULT
    window = int(size)
    text = await Context(ctx).fill(prompt)
    start, freed = len(text.tokens), 0
    await text.flush(lambda i, j: i - j < window)
    for _ in range(int(most)):
        freed += text.drop(0, text.computed - window + 1)
        token = await text.sample({"temperature": 0})
        if token in ctx.eos:
            break
        text.extend([token])
    answer = {"text": await text.text(start), "freed": freed, "held": len(text.pages)}
    await text.free()
    return answer
