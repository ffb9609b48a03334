"""Jacobi decoding: a block of tokens is guessed and corrected in parallel until it stands.

The tokens are those of greedy decoding. Arguments: the prompt, most tokens, tokens of a block.
"""

from __future__ import annotations

from sglang.inferlet import Context, Ctx


async def iterate(text: Context, guess: list[int]) -> tuple[list[int], list[int]]:
    """One pass: the tokens that stand from now on, and the better guess for what follows."""
    base = len(text.tokens)
    found = [dist.max_index() for dist in await text.next_dists(guess)]
    right = 0
    while right < len(guess) and guess[right] == found[right]:
        right += 1
    text.cut(base + right)
    text.extend([found[right]])
    return found[: right + 1], found[right + 1 :]


async def main(ctx: Ctx) -> dict[str, object]:
    prompt, most, block = ctx.get_arg() or ("one two three four one two three", "24", "6")
    text = await Context(ctx).fill(prompt)
    start, passes, ended = len(text.tokens), 0, False
    guess: list[int] = []
    while len(text.tokens) - start < int(most) and not ended:
        room = min(int(block), int(most) - (len(text.tokens) - start)) - 1
        guess = (guess + text.tokens[-1:] * room)[:room]
        fixed, guess = await iterate(text, guess)
        passes += 1
        ends = [index for index, token in enumerate(fixed) if token in ctx.eos]
        if ends:
            text.cut(len(text.tokens) - len(fixed) + ends[0])
            ended = True
    tokens = text.tokens[start:]
    answer = {"text": await ctx.detokenize(tokens), "tokens": len(tokens), "passes": passes}
    await text.free()
    return answer
