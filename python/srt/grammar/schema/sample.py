"""A sampled text that a grammar accepts, byte by byte. Letters and digits are likelier, and in a
long text the bytes that close it."""

from __future__ import annotations

import random

from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.grammar_protocol import CompiledGrammar, GrammarError

END = 256
BYTES = Vocabulary(
    tokens=(*(bytes([byte]) for byte in range(256)), b"<end>"),
    size=257,
    eos=(END,),
    special=frozenset({END}),
    encode=lambda texts: [list(text.encode()) for text in texts],
)
LONGEST = 100_000  # bytes
PATIENCE = 600  # bytes after which what closes the text is taken where it can be
TRIES = 8
WORD = b"abcdefghijklmnopqrstuvwxyz0123456789 ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def sample(grammar: CompiledGrammar, seed: int) -> str:
    """The same for the same seed. Raises GrammarError where no text was found.

    ``grammar`` is over BYTES.
    """
    for at in range(TRIES):
        found = _walk(grammar, random.Random(f"{seed}/{at}"), PATIENCE >> at)
        if found is not None:
            return found.decode()
    raise GrammarError(f"no text of at most {LONGEST} bytes was found; the shortest is longer.")


def _walk(grammar: CompiledGrammar, dice: random.Random, patience: int) -> bytes | None:
    matcher = grammar.matcher()
    text = bytearray()
    while len(text) < LONGEST:
        mask = matcher.mask()
        options = [byte for byte in range(256) if mask[byte >> 3] >> (byte & 7) & 1]
        if matcher.accepting and (not options or dice.random() < 0.5):
            return bytes(text)
        if not options:
            return None
        byte = _choose(options, dice, len(text) / patience)
        if not matcher.advance(byte):
            return None
        text.append(byte)
    return None


def _choose(options: list[int], dice: random.Random, age: float) -> int:
    """``age``: from 1 on what closes the text is taken where it can be."""
    if age >= 1:
        text = len(options) > 40  # inside a string, where brackets close nothing
        ends = [byte for byte in options if byte in (b'"' if text else b"]}")]
        if ends:
            return ends[0]
    closing = [byte for byte in options if byte in b'"]}']
    if closing and (len(options) > 3 or age > 0.1) and dice.random() < 0.15 + age:
        return dice.choice(closing)
    plain = [byte for byte in options if byte in WORD]
    if plain and dice.random() < 0.9:
        return dice.choice(plain)
    inside = [byte for byte in options if 32 <= byte < 127 and byte != 92]
    return dice.choice(inside or options)
