"""Ways of decoding a text greedily, from the server's own to every step in the program."""

from __future__ import annotations

from sglang.inferlet import Context, Ctx, Greedy

# End tokens are shown, as ``Context.text`` shows them.
PLAIN = {"temperature": 0, "ignore_eos": True, "skip_special_tokens": False}


async def begun(ctx: Ctx, prompt: str) -> Context:
    """The prompt, its beginning from the prefix cache, as the server's completion has it."""
    return await Context(ctx).cached(await ctx.tokenize(prompt, special=True))


async def lease(ctx: Ctx) -> str:
    """The server's completion, as a lease."""
    prompt, count = ctx.get_arg()
    params = {**PLAIN, "max_new_tokens": int(count)}
    found = await ctx.generate(prompt, **params)
    return str(found["text"])


async def sampled(ctx: Ctx) -> str:
    """A pass a token, sampled in the pass (forward_with_sampling)."""
    prompt, count = ctx.get_arg()
    text = await begun(ctx, prompt)
    start = len(text.tokens)
    for _ in range(int(count)):
        text.extend([await text.sample({"temperature": 0})])
    return await text.text(start)


async def ahead(ctx: Ctx) -> str:
    """The same, each forward requested before the token that it begins with is read."""
    prompt, count = ctx.get_arg()
    text = await begun(ctx, prompt)
    start = len(text.tokens)
    await text.run_ahead(int(count), {"temperature": 0}, ends=())
    return await text.text(start)


async def distributions(ctx: Ctx) -> str:
    """A pass a token; its distribution of 256 tokens, from which the program takes one."""
    return await _by_distributions(ctx, 256)


async def best(ctx: Ctx) -> str:
    """A pass a token; its distribution of one token, so that the price of 256 shows."""
    return await _by_distributions(ctx, 1)


async def _by_distributions(ctx: Ctx, k: int) -> str:
    prompt, count = ctx.get_arg()
    text = await begun(ctx, prompt)
    start, greedy = len(text.tokens), Greedy()
    for _ in range(int(count)):
        text.extend([greedy(await text.next_dist(k))])
    return await text.text(start)
