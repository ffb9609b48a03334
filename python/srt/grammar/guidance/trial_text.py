"""Probe: a short walk through a grammar, which shows limits that compiling it does not."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.guidance.guidance_grammar import GuidanceGrammar, GuidanceMatcher

# Bytes. Repeats that multiply show themselves within a dozen; ambiguity and recursion, whose cost
# grows with the text, within a hundred or two.
STEPS = 256


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
    if not _write(matcher, 0):
        return
    step = 1
    try:
        for step in range(1, STEPS):
            if not _write(matcher, step):
                return
    except GrammarError as error:
        reason = str(error).removeprefix("grammar: ")
        raise GrammarError(f"grammar: after {step} bytes of a trial text, {reason}") from None


def _write(matcher: GuidanceMatcher, step: int) -> bool:
    """Take a byte that is allowed. False where there is none. Raises GrammarError."""
    mask = np.frombuffer(matcher.mask(), dtype=np.uint8)
    allowed = np.flatnonzero(np.unpackbits(mask, bitorder="little")[:256])
    if len(allowed) == 0:
        if step == 0 and not matcher.accepting:
            raise GrammarError("no text satisfies it; let it match something")
        return False
    return matcher.advance(int(allowed[(7 * step) % len(allowed)]))
