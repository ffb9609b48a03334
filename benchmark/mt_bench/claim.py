"""MT-bench: 80 questions of two turns, where the second builds on the first's answer."""

from __future__ import annotations

import random

from benchmark.harness.claim import Claim, Item, Scale
from benchmark.harness.conversation import plain, program
from benchmark.harness.data import records

LIMIT = {False: 24, True: 128}


def items(scale: Scale, seed: int) -> list[Item]:
    """Beyond 80 items the questions begin again."""
    questions = [record["turns"] for record in records("mt_bench.jsonl")]
    random.Random(seed).shuffle(questions)
    return [
        {"turns": turns, "limits": [LIMIT[scale.long]] * len(turns)}
        for turns in (questions[number % len(questions)] for number in range(scale.items))
    ]


CLAIM = Claim(
    name="mt_bench",
    title="MT-bench (two turns)",
    paper="none in section 6; two-turn chat over published questions",
    items=items,
    program=program,
    plain=plain,
)
