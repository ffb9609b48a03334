"""Trial text: a short walk through a grammar, which shows limits that compiling it does not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.guidance.guidance_grammar import GuidanceGrammar, GuidanceMatcher
from sglang.srt.grammar.guidance.work_limits import ARRAYS, SCHEMA, StepLimits

# Bytes. Repeats that multiply show themselves within a dozen; ambiguity and recursion, whose cost
# grows with the text, within a hundred or two.
STEPS = 256
ALTERNATIVES = 8  # arrays, or objects, of one rule up to which no trial is needed
_NAME = re.compile(r"\b[a-z]\w*\b")
_INSIDE = bytes(byte for byte in range(256) if byte not in b"]}, \n\r\t")


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


def verify_nesting(rules: Sequence[str]) -> None:
    """Write trial texts that nest at once, from each rule of a schema with many alternatives of
    arrays, or of objects. Raises GrammarError where one exceeds its limits.

    Alternatives that begin alike multiply where they stand in one another: at n of them a row has
    n, then n^2, then n^3 items, and a mask computes a row before it is counted.
    """
    tried: set[str] = set()
    for rule in rules:
        name, _, body = rule.partition(": ")
        arrays, objects = body.count('"["'), body.count('"{"')
        shape = _NAME.sub("", body)  # a recursive schema has copies of a rule, with other names
        if max(arrays, objects) <= ALTERNATIVES or shape in tried:
            continue
        tried.add(shape)
        text = "\n".join([f"start: {name}", *rules])
        if arrays > ALTERNATIVES:
            _nest(text, b"[", b"[", 6, ARRAYS)
        if objects > ALTERNATIVES:
            _nest(text, b'{"', _INSIDE, 24, SCHEMA)


def _nest(text: str, opening: bytes, inside: bytes, steps: int, limits: StepLimits) -> None:
    """Write ``steps`` bytes of ``inside``, those of ``opening`` where they may stand. Raises
    GrammarError."""
    matcher = GuidanceGrammar(text, byte_vocabulary(), canonical=False, step=limits).matcher()
    for step in range(steps):
        allowed = _allowed(matcher)
        found = [byte for byte in opening if byte in allowed]
        found = found or [byte for byte in allowed if byte in inside]
        if not found or not matcher.advance(found[(7 * step) % len(found)]):
            return


def _allowed(matcher: GuidanceMatcher) -> list[int]:
    """Bytes that may come next. Raises GrammarError."""
    mask = np.frombuffer(matcher.mask(), dtype=np.uint8)
    found: list[int] = np.flatnonzero(np.unpackbits(mask, bitorder="little")[:256]).tolist()
    return found


def _write(matcher: GuidanceMatcher, step: int) -> bool:
    """Take a byte that is allowed. False where there is none. Raises GrammarError."""
    allowed = _allowed(matcher)
    if not allowed:
        if step == 0 and not matcher.accepting:
            raise GrammarError("no text satisfies it; let it match something")
        return False
    return matcher.advance(allowed[(7 * step) % len(allowed)])
