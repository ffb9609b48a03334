"""Output validation (ReLM): which texts of a language would the model write, and how likely?

The language is a pattern with alternatives, such as "The {cat|dog} sits{| down}.". Its texts are a
tree of tokens; common beginnings are computed once. Arguments: the prompt, the pattern, the least
log-probability of a text that counts as valid.
"""

from __future__ import annotations

import asyncio
import itertools
import re

from sglang.inferlet import Context, Ctx


def language(pattern: str) -> list[str]:
    """All texts of a pattern."""
    parts = re.split(r"\{([^{}]*)\}", pattern)
    choices = [part.split("|") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(one) for one in itertools.product(*choices)]


async def score(text: Context, base: float, rest: dict[int, list[int]]) -> dict[int, float]:
    """Log-probability of each text, by index; ``rest`` has its tokens that are not in ``text``."""
    found = {index: base for index, tokens in rest.items() if not tokens}
    nexts = sorted({tokens[0] for tokens in rest.values() if tokens})
    if not nexts:
        return found
    dist = await text.next_dist(k=1, probe=nexts)
    branches = []
    for child, token, logprob in zip(await text.fork(len(nexts)), nexts, dist.probe):
        child.extend([token])
        deeper = {i: one[1:] for i, one in rest.items() if one[:1] == [token]}
        branches.append(score(child, base + logprob, deeper))
    for part in await asyncio.gather(*branches):
        found |= part
    await text.free()
    return found


async def main(ctx: Ctx) -> dict[str, float]:
    prompt, pattern, least = ctx.get_arg() or ("The pet:", " a {cat|dog|fish}{| sits}.", "-40")
    texts = language(pattern)
    tokens = await asyncio.gather(*(ctx.tokenize(text) for text in texts))
    root = await Context(ctx).fill(prompt)
    scores = await score(root, 0.0, dict(enumerate(tokens)))
    valid = [index for index in scores if scores[index] >= float(least)]
    return {texts[index]: scores[index] for index in sorted(valid, key=lambda i: -scores[i])}
