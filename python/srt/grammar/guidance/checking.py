"""Limits of llguidance's work, and what its errors say in few words."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from sglang.srt.grammar.protocol import GrammarError

# Units of llguidance, by its own figures: fuel 50 k/ms while compiling and 14 k/ms in a step, lexer
# states 1 to 2 kB each. An item costs as many comparisons as its row has items, and in an ambiguous
# grammar as many of those as there are derivations: at 50,000 items and rows of 2,000 a mask took
# 1.2 s. On a vocabulary of 131 k, 333 real schemas need 224 items and rows of 128 at most, and
# grammars of programming languages 3,300 and 32.
COMPILE_FUEL = 2_500_000
STEP_FUEL = 200_000
LEXER_STATES = 30_000
GRAMMAR_SYMBOLS = 500_000
LONGEST = 240  # characters of a message
DEAD_END = "NoExtensionBias"
PANIC, POISONED = "panic", "PoisonError"  # what a panic says, and later ones of the same lexer
FINAL = (DEAD_END.lower(), "too many items", "current row has", "too many expressions")


class StepLimits(NamedTuple):
    """Parser items of one mask, and of the row behind one lexeme."""

    items: int
    row: int


RULES = StepLimits(8_000, 400)  # of rules that a user wrote: the worst mask found takes 14 ms
SCHEMA = StepLimits(8_000, 1_600)  # of rules made of a schema, where many properties are a wide row

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
    """An ``LLParserLimits``."""
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
    """Whether an error is met again at the same state: a limit of the step, or a dead end. Others
    are of the lexer that the matchers of a grammar share, and a new one has not met them."""
    return any(sign in message.lower() for sign in FINAL)


def is_panic(message: str) -> bool:
    """Whether llguidance panicked at this very call, and not before."""
    return message.startswith(PANIC) and POISONED not in message


def short(message: str) -> str:
    """llguidance's message without the parser's state, the grammar and the source excerpt."""
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
