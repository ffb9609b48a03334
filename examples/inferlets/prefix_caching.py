"""Prefix caching: the KV of a prefix is computed once, exported under a name, and imported by the
programs that come later (vLLM's automatic prefix caching, as a program's own decision).

Arguments: the name, the prefix, the question, most tokens.
"""

from __future__ import annotations

from sglang.inferlet import Context, Ctx

DEFAULT = ("manual", "This is the manual of a clock. It has two hands.", " How many hands?", "12")


async def prefix_of(ctx: Ctx, name: str, tokens: list[int]) -> Context:
    """A text that begins with the tokens; computed here, where no export has them."""
    whole = len(tokens) - len(tokens) % ctx.page_size
    text = Context(ctx)
    if name in await ctx.list_exports(name):
        await text.load(name, tokens[:whole])
    else:
        text.extend(tokens[:whole])
        await text.save(name)
    text.extend(tokens[whole:])
    return text


async def main(ctx: Ctx) -> str:
    name, prefix, question, count = ctx.get_arg() or DEFAULT
    text = await prefix_of(ctx, name, await ctx.tokenize(prefix, special=True))
    await text.fill(question)
    answer = await text.generate_until(max_tokens=int(count))
    await text.free()
    return answer
