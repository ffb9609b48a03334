"""Attention sink (StreamingLLM): the first tokens and the last ones are seen, the others freed.

A text of any length goes on with the memory of ``sink + window`` tokens. Positions stay those of
the text. Arguments: the prompt, most tokens, tokens of the sink, tokens of the window.
"""

from __future__ import annotations

from sglang.inferlet import Context, Ctx

DEFAULT = ("The weather today is fine and the farmer walks along the river.", "16", "4", "8")


async def main(ctx: Ctx) -> dict[str, object]:
    prompt, most, *sizes = ctx.get_arg() or DEFAULT
    sink, window = map(int, sizes)
    text = await Context(ctx).fill(prompt)
    start, freed = len(text.tokens), 0
    await text.flush(lambda i, j: j < sink or i - j < window)
    for _ in range(int(most)):
        # The next token, at index `computed`, sees itself and `window - 1` before it.
        freed += text.drop(sink, text.computed - window + 1)
        token = await text.sample({"temperature": 0})
        if token in ctx.eos:
            break
        text.extend([token])
    answer = {
        "text": await text.text(start),
        "freed": freed,
        "held": len(text.pages),
    }
    await text.free()
    return answer
