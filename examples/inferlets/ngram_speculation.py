"""Speculative decoding with n-grams of the text itself (vLLM's prompt lookup).

What followed the last tokens where they stood before is drafted, and verified in one pass. The
tokens are those of greedy decoding; fewer passes make them. Arguments: the prompt, most tokens.
"""

from __future__ import annotations

from sglang.inferlet import Context, Ctx

LONGEST, SHORTEST = 4, 1  # tokens of an n-gram that is looked up
DRAFTS = 6  # tokens of a draft


def lookup(tokens: list[int]) -> list[int]:
    """The tokens behind the latest earlier occurrence of the longest n-gram at the end."""
    for size in range(min(LONGEST, len(tokens) - 1), SHORTEST - 1, -1):
        gram = tokens[-size:]
        for start in range(len(tokens) - size - 1, -1, -1):
            if tokens[start : start + size] == gram:
                return tokens[start + size : start + size + DRAFTS]
    return []


async def verify(text: Context, drafts: list[int]) -> list[int]:
    """The greedy tokens behind the text: as many drafts as they agree with, and one more."""
    base = len(text.tokens)
    dists = await text.next_dists(drafts)
    accepted: list[int] = []
    for index, dist in enumerate(dists):
        accepted.append(dist.max_index())
        if index == len(drafts) or drafts[index] != accepted[-1]:
            break
    text.cut(base + len(accepted) - 1)
    text.extend(accepted[-1:])
    return accepted


async def main(ctx: Ctx) -> dict[str, object]:
    prompt, most = ctx.get_arg() or ("one two three four one two three four one", "24")
    text = await Context(ctx).fill(prompt)
    start, passes, ended = len(text.tokens), 0, False
    while len(text.tokens) - start < int(most) and not ended:
        room = int(most) - (len(text.tokens) - start) - 1
        accepted = await verify(text, lookup(text.tokens)[:room])
        passes += 1
        ends = [index for index, token in enumerate(accepted) if token in ctx.eos]
        if ends:
            text.cut(len(text.tokens) - len(accepted) + ends[0])
            ended = True
    tokens = text.tokens[start:]
    answer = {"text": await ctx.detokenize(tokens), "tokens": len(tokens), "passes": passes}
    await text.free()
    return answer
