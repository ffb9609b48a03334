"""ReACT agent: thoughts and calls of web APIs in turn, all in one text whose KV stays.

A line "Act: word" calls the API, the line "See: ..." behind it is its answer; only that line is
computed anew. Arguments: the URL of the API, the question, most turns, most tokens of a turn. The
program needs the right to reach the URL.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from sglang.inferlet import CallError, Context, Ctx
from sglang.inferlet.samplers import at_text

TASK = "Question: How many legs has a cow?\nAct: cow\nSee: A cow has four legs.\nAnswer: four\n"
ACT = re.compile(r"Act: *(.+)")


async def observe(ctx: Ctx, url: str, line: str) -> str | None:
    """The API's answer to a turn; None where the turn calls nothing."""
    found = ACT.match(line)
    if found is None:
        return None
    try:
        return (await ctx.http_get(f"{url}?q={quote(found[1].strip())}")).split("\n")[0]
    except CallError as error:
        return f"error {error.code}"


async def main(ctx: Ctx) -> dict[str, object]:
    url, question, turns, most = ctx.get_arg()
    text = await Context(ctx).fill(f"{TASK}Question: {question}\nAct:")
    start, line, calls = len(text.tokens), "Act:", 0
    for _ in range(int(turns)):
        line += (await text.generate_until(int(most), stop=at_text("\n"))).split("\n")[0]
        seen = await observe(ctx, url, line)
        if seen is None:
            break
        calls += 1
        end = "" if (await text.text(start)).endswith("\n") else "\n"
        await text.fill(f"{end}See: {seen}\n")
        line = ""
    answer = {"text": await text.text(start), "calls": calls, "tokens": len(text.tokens)}
    await text.free()
    return answer
