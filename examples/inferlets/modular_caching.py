"""Modular caching (Prompt Cache): modules of a prompt are computed apart, each at the position that
the prompt's schema gives it, exported, and put together as a request needs them.

Modules do not see each other; the answer sees those that were chosen. Arguments: most tokens, the
question, numbers of the chosen modules (0,2), the modules in the order of the schema.
"""

from __future__ import annotations

import hashlib

from sglang.inferlet import Context, Ctx

MODULES = ("The farmer has a dog.", " The river is wide.", " The dog is old.")
DEFAULT = ("12", " What is old?", "0,2", *MODULES)


async def layout(ctx: Ctx, modules: list[str]) -> list[tuple[int, list[int]]]:
    """Position and tokens of each module; whole pages, so that a module shares none."""
    found, position = [], 0
    for index, module in enumerate(modules):
        tokens = await ctx.tokenize(module, special=index == 0)
        tokens = tokens[: len(tokens) - len(tokens) % ctx.page_size]
        found.append((position, tokens))
        position += len(tokens)
    return found


async def export(ctx: Ctx, position: int, tokens: list[int]) -> str:
    """Name of the export of a module at a position, which is computed where there is none."""
    digest = hashlib.sha256(repr((position, tokens)).encode()).hexdigest()[:16]
    if digest not in await ctx.list_exports(digest):
        module = Context(ctx, start=position)
        module.extend(tokens)
        await module.save(digest)
        await module.free()
    return digest


async def main(ctx: Ctx) -> str:
    most, question, numbers, *modules = ctx.get_arg() or DEFAULT
    chosen = [int(number) for number in numbers.split(",")]
    text = Context(ctx)
    for index, (position, tokens) in enumerate(await layout(ctx, list(modules))):
        if index in chosen:
            await text.load(await export(ctx, position, tokens), tokens)
        else:
            text.skip(tokens)
    await text.fill(question)
    answer = await text.generate_until(max_tokens=int(most))
    await text.free()
    return answer
