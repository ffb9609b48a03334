"""Four turns of chat with answers of 4 to 8 tokens. What is shared is a chat's own history."""

from __future__ import annotations

import random

from benchmark.harness.claim import Claim, Item, Scale
from benchmark.harness.conversation import chat, plain, program, right

TURNS = 4
TOKENS = {False: range(30, 60), True: range(256, 513)}
LIMITS = range(4, 9)


def items(scale: Scale, seed: int) -> list[Item]:
    draw = random.Random(seed)
    return [chat(draw, TURNS, TOKENS[scale.long], LIMITS) for _ in range(scale.items)]


CLAIM = Claim(
    name="multi_turn_short",
    title="Multi-turn chat, short answers",
    paper="Fig. 5 and 6, multi-turn chat (short): 4 turns of 256 to 512 tokens, answers of 4 to 8",
    items=items,
    program=program,
    plain=plain,
    right=right,
    speedup=2.0,
)
