"""GBNF: llama.cpp's notation of grammars, which it takes instead of a regular expression."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants as codes  # type: ignore[attr-defined]
    from re import _parser as parser  # type: ignore[attr-defined]
else:
    import sre_constants as codes
    import sre_parse as parser

_CATEGORIES = {
    codes.CATEGORY_DIGIT: "0-9", codes.CATEGORY_WORD: "0-9A-Za-z_",
    codes.CATEGORY_SPACE: r"\x20\t\n\r",
}  # fmt: skip

# Items that a repetition can follow. A group around one would be a rule more for every time.
_WHOLE = (codes.LITERAL, codes.NOT_LITERAL, codes.ANY, codes.IN, codes.SUBPATTERN, codes.BRANCH)


def of_regex(pattern: str) -> str:
    """The grammar of texts that match all of ``pattern``, whose classes are ASCII's.

    Raises ValueError for what GBNF lacks: anchors within, look-around, references.
    """
    return f"root ::= {_sequence(parser.parse(pattern))}"


def of_texts(options: Iterable[str]) -> str:
    """The grammar of one of ``options``."""
    return "root ::= " + " | ".join(_literal(option) for option in options)


def _sequence(parts: Any) -> str:
    """``parts`` yields pairs of a code and its value, which the stubs do not say."""
    return " ".join(filter(None, (_part(code, value) for code, value in parts))) or '""'


def _part(code: Any, value: Any) -> str:
    if code is codes.LITERAL:
        return _literal(chr(value))
    if code is codes.NOT_LITERAL:
        return f"[^{_escaped(value)}]"
    if code is codes.ANY:
        return r"[^\n]"
    if code is codes.IN:
        return _class(value)
    if code is codes.SUBPATTERN:
        return f"({_sequence(value[-1])})"
    if code is codes.BRANCH:
        return f"({' | '.join(map(_sequence, value[1]))})"
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
        least, most, inner = value
        bound = "" if most is codes.MAXREPEAT else str(most)
        one = _sequence(inner)
        if len(inner) != 1 or inner[0][0] not in _WHOLE:
            one = f"({one})"
        return f"{one}{{{least},{bound}}}"
    raise ValueError(f"a regex with {code} has no grammar in GBNF")


def _class(members: Iterable[tuple[Any, Any]]) -> str:
    text = ""
    for code, value in members:
        if code is codes.NEGATE:
            text += "^"
        elif code is codes.LITERAL:
            text += _escaped(value)
        elif code is codes.RANGE:
            text += f"{_escaped(value[0])}-{_escaped(value[1])}"
        elif code is codes.CATEGORY and value in _CATEGORIES:
            text += _CATEGORIES[value]
        else:
            raise ValueError(f"a class with {value} has no grammar in GBNF")
    return f"[{text}]"


def _literal(text: str) -> str:
    return '"' + "".join(_escaped(ord(letter)) for letter in text) + '"'


def _escaped(code: int) -> str:
    """Letters and digits as they are, everything else by number."""
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
