"""The workload as peers run it: one ``select`` among texts that begin alike."""

from __future__ import annotations

from typing import Any

import sglang as sgl

from benchmark.harness.claim import Api, Claim, Item, Scale
from benchmark.select.options import options, prompt

SENTENCES = 8  # in each prompt
COUNT = 100  # options of each item


def items(scale: Scale, seed: int) -> list[Item]:
    return [
        {"prompt": prompt(SENTENCES, seed + n), "options": options("words", COUNT, seed + n)}
        for n in range(scale.items)
    ]


@sgl.function
def program(s: Any, prompt: str, options: list[str]) -> str:
    s += prompt + sgl.select("answer", choices=options)
    return str(s["answer"])


async def plain(api: Api, item: Item) -> str:
    return str(item["options"][await api.choose(item["prompt"], item["options"])])


CLAIM = Claim(
    "select",
    "Select",
    "section 3, primitive select",
    items,
    program,
    plain,
    module="benchmark.select.workload",
)
