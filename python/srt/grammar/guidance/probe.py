"""Probe: a short walk through a grammar, which shows limits that compiling it does not."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from srt.core.vocabulary import Vocabulary
from srt.grammar.base import GrammarError
from srt.grammar.guidance.grammar import GuidanceGrammar

STEPS = 64  # bytes; repeats that multiply show themselves within a dozen


@lru_cache(maxsize=1)
def byte_vocabulary() -> Vocabulary:
    """One token a byte, and an end token."""
    tokens = [bytes([byte]) for byte in range(256)]
    return Vocabulary(
        tokens, 257, (256,), frozenset([256]), lambda ts: [list(t.encode()) for t in ts]
    )


def probe(text: str) -> None:
    """Write STEPS bytes that the grammar allows. Raises GrammarError where nothing may begin, or a
    step exceeds its limits."""
    matcher = GuidanceGrammar(text, byte_vocabulary()).matcher()
    for step in range(STEPS):
        mask = np.frombuffer(matcher.mask(), dtype=np.uint8)
        allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[:256])
        if len(allowed) == 0:
            if step == 0 and not matcher.accepting:
                raise GrammarError("no text satisfies it; let it match something")
            return
        if not matcher.advance(int(allowed[(7 * step) % len(allowed)])):
            return
