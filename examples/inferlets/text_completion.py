"""Text completion by forward passes of the program's own: one token a pass, sampled by the engine.

Arguments: the prompt, most tokens.
"""

from __future__ import annotations

from sglang.inferlet import Context, Ctx


async def main(ctx: Ctx) -> str:
    prompt, count = ctx.get_arg() or ("The weather today", "16")
    text = await Context(ctx).fill(prompt)
    answer = await text.generate_until(max_tokens=int(count))
    await text.free()
    return answer
