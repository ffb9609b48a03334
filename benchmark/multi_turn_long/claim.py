"""Four turns of chat with long answers: decoding dominates, and little is left to share.

The paper's answers have 256 to 512 tokens; ours have half as many, for the sake of time.
"""

from __future__ import annotations

import random

from benchmark.harness.claim import Claim, Item, Scale
from benchmark.harness.conversation import chat, plain, program, right

TURNS = 4
TOKENS = {False: range(30, 60), True: range(256, 513)}
LIMITS = {False: range(16, 33), True: range(128, 257)}


def items(scale: Scale, seed: int) -> list[Item]:
    draw = random.Random(seed)
    return [chat(draw, TURNS, TOKENS[scale.long], LIMITS[scale.long]) for _ in range(scale.items)]


CLAIM = Claim(
    name="multi_turn_long",
    title="Multi-turn chat, long answers",
    paper="Fig. 5 and 6, multi-turn chat (long): 4 turns of 256 to 512 tokens, answers of 256 to "
    "512 (here 128 to 256)",
    items=items,
    program=program,
    plain=plain,
    right=right,
    speedup=1.0,
)
