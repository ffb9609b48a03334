"""Skeleton of thought: points on a topic. They are written one after the other, a line each, then
all of them in detail at once, and a summary reads the details. The data say how many there are."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import sglang as sgl

from benchmark.harness import data
from benchmark.harness.claim import Api, Claim, Item, Scale
from benchmark.harness.numbered import numbered

INTRO = "You give practical tips: short ones first, then each of them in a paragraph.\n\n"
STOPS = ("\n", ".", ":")


def items(scale: Scale, seed: int) -> list[Item]:
    tokens = [16, 128, 48] if scale.long else [6, 16, 12]
    return [
        {"wish": f"{label}Tips for {topic['topic']}.",
         "number": topic["number"] if scale.long else 3, "tokens": tokens}
        for label, topic in numbered(data.records("tip_topics.jsonl"), scale.items, seed)
    ]  # fmt: skip


def begun(wish: str, number: int) -> str:
    return f"{INTRO}{wish}\nHere are {number}:\n"


def summary(details: Sequence[str]) -> str:
    texts = [f"Tip {place}:{detail}\n" for place, detail in enumerate(details, 1)]
    return "\nIn detail:\n" + "".join(texts) + "In summary:"


@sgl.function
def program(s, wish, number, tokens):
    tip, detail, end = tokens
    s += begun(wish, number)
    for place in range(1, number + 1):
        s += f"{place}." + sgl.gen(f"tip {place}", tip, stop=list(STOPS)) + "\n"
    with s.fork(number) as forks:
        for place, fork in enumerate(forks, 1):
            fork += f"\nTip {place}, {fork[f'tip {place}']}, in detail:"
            fork += sgl.gen("detail", detail, stop="\n\n")
    s += summary(s["detail"]) + sgl.gen("summary", end, stop="\n\n")
    return {"details": s["detail"], "summary": s["summary"]}


async def plain(api: Api, item: Item) -> dict[str, object]:
    tip, detail, end = item["tokens"]
    text, tips = begun(item["wish"], item["number"]), []
    for place in range(1, item["number"] + 1):
        [line] = await api.complete(text + f"{place}.", tip, stop=list(STOPS))
        text += f"{place}.{line}\n"
        tips.append(line)

    async def expand(place: int) -> str:
        prompt = text + f"\nTip {place}, {tips[place - 1]}, in detail:"
        return (await api.complete(prompt, detail, stop=["\n\n"]))[0]

    details = await asyncio.gather(*map(expand, range(1, item["number"] + 1)))
    [last] = await api.complete(text + summary(details), end, stop=["\n\n"])
    return {"details": list(details), "summary": last}


CLAIM = Claim(
    name="skeleton_of_thought",
    title="Skeleton of thought (tips)",
    paper="Fig. 5, Skeleton-of-Thought",
    items=items,
    program=program,
    plain=plain,
)
