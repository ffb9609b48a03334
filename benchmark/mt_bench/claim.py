"""MT-bench: 80 questions of two turns, where the second builds on the first's answer."""

from __future__ import annotations

from benchmark.harness.claim import Claim, Item, Scale
from benchmark.harness.conversation import plain, program
from benchmark.harness.data import records
from benchmark.harness.numbered import numbered

LIMIT = {False: 24, True: 128}


def items(scale: Scale, seed: int) -> list[Item]:
    questions = [record["turns"] for record in records("mt_bench.jsonl")]
    return [
        {"turns": [label + first, *more], "limits": [LIMIT[scale.long]] * (1 + len(more))}
        for label, (first, *more) in numbered(questions, scale.items, seed)
    ]


CLAIM = Claim(
    name="mt_bench",
    title="MT-bench (two turns)",
    paper="none in section 6; two-turn chat over published questions",
    items=items,
    program=program,
    plain=plain,
)
