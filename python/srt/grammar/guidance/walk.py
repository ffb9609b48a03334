"""Walk: whether the masks of a terminal keep within the limits of a step, with many tokens.

Conditions that are combined (``&``, ``~``) may have a state for every way in which their parts
overlap. Bytes alone do not show it: a mask looks at all texts that a token may add.
"""

from __future__ import annotations

import random
from functools import lru_cache
from typing import Any

import numpy as np
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.guidance.checking import STEP_FUEL
from sglang.srt.grammar.guidance.tokens import TOKENIZERS

TOKENS = 12_000
STEPS = 8  # what grows shows itself at the first two or three
FUEL = STEP_FUEL // 4  # a real vocabulary has ten times the tokens, and long ones
_SHAPES = (  # share, characters, longest
    (0.6, "etaoinshrdlucmfwypvbgkjqxz", 8),
    (0.1, "etaoinsh", 8),
    (0.1, "0123456789", 3),
    (0.1, '.,-_:/"{}[]()<>=\\+* ', 4),
    (0.1, "abcABC019 -_.", 8),
)


@lru_cache(maxsize=4096)
def too_hard(terminal: str) -> bool:
    """Whether one of the first STEPS masks of a terminal takes more than FUEL."""
    from llguidance import LLMatcher, LLParserLimits

    limits = LLParserLimits(step_lexer_fuel=FUEL, verbose_errors=False)
    tokenizer, _ = TOKENIZERS.get(many_tokens())
    matcher = LLMatcher(tokenizer, f"start: T\nT: {terminal}", log_level=0, limits=limits)
    for step in range(STEPS):
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            return "lexer" in matcher.get_error() or "expressions" in matcher.get_error()
        tokens = np.flatnonzero(np.unpackbits(mask, bitorder="little")[: TOKENS + 256])
        if len(tokens) == 0 or not matcher.consume_token(int(tokens[(7919 * step) % len(tokens)])):
            break
    return False


@lru_cache(maxsize=1)
def many_tokens() -> Vocabulary:
    """All bytes, and as many short texts as a small vocabulary has. The same in every process."""
    dice = random.Random("tokens")
    texts: set[bytes] = set()
    while len(texts) < TOKENS:
        _, chars, longest = dice.choices(_SHAPES, [share for share, _, _ in _SHAPES])[0]
        text = "".join(dice.choices(chars, k=dice.randint(2, longest)))
        texts.add((dice.choice(["", "", " "]) + dice.choice([text, text.capitalize()])).encode())
    tokens: list[Any] = [*(bytes([byte]) for byte in range(256)), *sorted(texts)]
    return Vocabulary(
        (*tokens, b""), len(tokens) + 1, (len(tokens),), frozenset([len(tokens)]),
        lambda ts: [list(t.encode()) for t in ts],
    )  # fmt: skip
