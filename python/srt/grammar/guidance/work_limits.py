"""Limits of llguidance's work, short texts of its errors, and a check of a terminal's cost."""

from __future__ import annotations

import random
import re
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.guidance.guidance_tokenizer import TOKENIZERS

# Units of llguidance, by its own figures: fuel 50 k/ms while compiling and 14 k/ms in a step, lexer
# states 1 to 2 kB each. An item costs as many comparisons as its row has items, and in an ambiguous
# grammar as many of those as there are derivations: at 50,000 items and rows of 2,000 a mask took
# 1.2 s. On a vocabulary of 131 k, 333 real schemas need 224 items and rows of 128 at most, and
# grammars of programming languages 3,300 and 32.
COMPILE_FUEL = 2_500_000
STEP_FUEL = 200_000
LEXER_STATES = 30_000
GRAMMAR_SYMBOLS = 500_000
LONGEST = 240  # limit of the characters of a message
DEAD_END = "NoExtensionBias"
PANIC, POISONED = (
    "panic",
    "PoisonError",
)  # messages of a panic, and of later calls of the same lexer
FINAL = (DEAD_END.lower(), "too many items", "current row has", "too many expressions")

TRIAL_TOKENS = 12_000
TRIAL_STEPS = 8  # enough: growth of the work is visible in the first two or three
TRIAL_FUEL = STEP_FUEL // 4  # a real vocabulary has ten times the tokens, and long ones
_TOKEN_SHAPES = (  # share, characters, longest
    (0.6, "etaoinshrdlucmfwypvbgkjqxz", 8),
    (0.1, "etaoinsh", 8),
    (0.1, "0123456789", 3),
    (0.1, '.,-_:/"{}[]()<>=\\+* ', 4),
    (0.1, "abcABC019 -_.", 8),
)


class StepLimits(NamedTuple):
    """Limits of the parser items of one mask, and of the row after one lexeme."""

    items: int
    row: int


RULES = StepLimits(8_000, 400)  # rules by a user: the worst mask found takes 14 ms
SCHEMA = StepLimits(8_000, 1_600)  # rules of a schema: many properties make a wide row
ARRAYS = StepLimits(8_000, 800)  # trial texts of nested arrays, a byte an item

_LIMITS = (
    ("initial lexer configuration", f"it takes more than {COMPILE_FUEL} units of lexer work to "
     "compile; make its patterns or repetitions smaller"),
    ("too many items", "a step takes more than {limit} parser items; "
     "make the grammar less ambiguous"),
    ("current row has", "its parser keeps more than {limit} items, more the longer the text; "
     "make the grammar less ambiguous, or write recursion as repetition"),
    ("lexer state", f"its lexer needs more than {LEXER_STATES} states; make its patterns smaller"),
    ("too many expressions", f"a step takes more than {STEP_FUEL} units of lexer work; "
     "make its patterns smaller"),
    ("lexer exceeded", f"a step takes more than {STEP_FUEL} units of lexer work; "
     "make its patterns smaller"),
    ("grammar size", f"it has more than {GRAMMAR_SYMBOLS} symbols; make it smaller"),
    # A panic: symbols are numbered with 16 bits, and validating a grammar does not count them.
    ("grammar.symbols.len()", "its rules have more than 65,524 symbols; make it smaller, with "
     "fewer alternatives"),
)  # fmt: skip


def limits(step: StepLimits = RULES) -> Any:
    """Return the limits as ``LLParserLimits``."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=step.row,
        initial_lexer_fuel=COMPILE_FUEL,
        step_lexer_fuel=STEP_FUEL,
        step_max_items=step.items,
        max_lexer_states=LEXER_STATES,
        max_grammar_size=GRAMMAR_SYMBOLS,
        verbose_errors=False,
    )


def is_final(message: str) -> bool:
    """Return True if an error repeats at the same state: a limit of the step, or a dead end. Other
    errors belong to the shared lexer and do not occur with a new lexer."""
    return any(sign in message.lower() for sign in FINAL)


def is_panic(message: str) -> bool:
    """Return True if llguidance panicked during this call, and not in an earlier one."""
    return message.startswith(PANIC) and POISONED not in message


def short(message: str) -> str:
    """Return llguidance's message without parser state, grammar and source excerpt."""
    text = re.split(r"\n<(?:state|non-verbose|grammar)", message, maxsplit=1)[0]
    text = re.sub(r"(?m)^\s*\d* \|.*$|^[ ^]*$", "", text)
    text = " ".join(text.split())
    for sign, plain in _LIMITS:
        if sign in text.lower():
            found = re.search(r"(?:max is|limit) (\d+)", text)
            return plain.replace("{limit}", found[1] if found else "so many")
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def check(text: str, step: StepLimits = RULES) -> None:
    """Compile a grammar without a vocabulary. Raises GrammarError."""
    from llguidance import LLMatcher

    failed, messages = LLMatcher.validate_grammar_with_warnings(text, None, limits=limits(step))
    if failed:
        raise GrammarError(f"grammar: {short(messages[0])}")


@lru_cache(maxsize=4096)
def too_hard(terminal: str) -> bool:
    """Whether one of the first TRIAL_STEPS masks of a terminal takes more than TRIAL_FUEL.

    Combined conditions (``&``, ``~``) may have a state for every way in which their parts overlap.
    Only a vocabulary shows that, not bytes: a mask looks at all texts that a token may add.
    """
    from llguidance import LLMatcher, LLParserLimits

    parser_limits = LLParserLimits(step_lexer_fuel=TRIAL_FUEL, verbose_errors=False)
    tokenizer, _ = TOKENIZERS.get(many_tokens())
    matcher = LLMatcher(tokenizer, f"start: T\nT: {terminal}", log_level=0, limits=parser_limits)
    for step in range(TRIAL_STEPS):
        mask = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
        if matcher.is_error():
            return "lexer" in matcher.get_error() or "expressions" in matcher.get_error()
        tokens = np.flatnonzero(np.unpackbits(mask, bitorder="little")[: TRIAL_TOKENS + 256])
        if len(tokens) == 0 or not matcher.consume_token(int(tokens[(7919 * step) % len(tokens)])):
            break
    return False


@lru_cache(maxsize=1)
def many_tokens() -> Vocabulary:
    """All bytes, and as many short texts as a small vocabulary has; the same in every process."""
    dice = random.Random("tokens")
    texts: set[bytes] = set()
    while len(texts) < TRIAL_TOKENS:
        _, chars, longest = dice.choices(_TOKEN_SHAPES, [share for share, _, _ in _TOKEN_SHAPES])[0]
        text = "".join(dice.choices(chars, k=dice.randint(2, longest)))
        texts.add((dice.choice(["", "", " "]) + dice.choice([text, text.capitalize()])).encode())
    tokens: list[Any] = [*(bytes([byte]) for byte in range(256)), *sorted(texts)]
    return Vocabulary(
        (*tokens, b""), len(tokens) + 1, (len(tokens),), frozenset([len(tokens)]),
        lambda ts: [list(t.encode()) for t in ts],
    )  # fmt: skip
