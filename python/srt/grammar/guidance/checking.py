"""Limits of llguidance's work, and what its errors say in few words."""

from __future__ import annotations

import re
from typing import Any

from srt.grammar.base import GrammarError

# Units of llguidance, by its own figures: fuel 50 k/ms while compiling and 14 k/ms in a step, items
# 20 k/ms, lexer states 1 to 2 kB each.
COMPILE_FUEL = 10_000_000
STEP_FUEL = 500_000
STEP_ITEMS = 50_000
ROW_ITEMS = 2_000
LEXER_STATES = 30_000
GRAMMAR_SYMBOLS = 500_000
LONGEST = 240  # characters of a message
DEAD_END = "NoExtensionBias"

_LIMITS = (
    ("initial lexer configuration", f"it takes more than {COMPILE_FUEL} units of lexer work to "
     "compile; make its patterns or repetitions smaller"),
    ("too many items", f"a step takes more than {STEP_ITEMS} parser items; "
     "make the grammar less ambiguous"),
    ("lexer state", f"its lexer needs more than {LEXER_STATES} states; make its patterns smaller"),
    ("too many expressions", f"a step takes more than {STEP_FUEL} units of lexer work; "
     "make its patterns smaller"),
    ("lexer exceeded", f"a step takes more than {STEP_FUEL} units of lexer work; "
     "make its patterns smaller"),
    ("grammar size", f"it has more than {GRAMMAR_SYMBOLS} symbols; make it smaller"),
)  # fmt: skip


def limits() -> Any:
    """An ``LLParserLimits``."""
    from llguidance import LLParserLimits

    return LLParserLimits(
        max_items_in_row=ROW_ITEMS,
        initial_lexer_fuel=COMPILE_FUEL,
        step_lexer_fuel=STEP_FUEL,
        step_max_items=STEP_ITEMS,
        max_lexer_states=LEXER_STATES,
        max_grammar_size=GRAMMAR_SYMBOLS,
        verbose_errors=False,
    )


def short(message: str) -> str:
    """llguidance's message without the parser's state, the grammar and the source excerpt."""
    text = re.split(r"\n<(?:state|non-verbose|grammar)", message, maxsplit=1)[0]
    text = re.sub(r"(?m)^\s*\d* \|.*$|^[ ^]*$", "", text)
    text = " ".join(text.split())
    for sign, plain in _LIMITS:
        if sign in text.lower():
            return plain
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def check(text: str) -> None:
    """Compile a grammar without a vocabulary. Raises GrammarError."""
    from llguidance import LLMatcher

    failed, messages = LLMatcher.validate_grammar_with_warnings(text, None, limits=limits())
    if failed:
        raise GrammarError(f"grammar: {short(messages[0])}")
