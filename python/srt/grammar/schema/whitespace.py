"""The white space allowed between two tokens of JSON: a pattern, and never endless."""

from __future__ import annotations

import re

from sglang.srt.grammar.grammar_protocol import GrammarError

LONGEST = 8
_ATOM = re.compile(
    r"(?P<atom>\[(?:[ \n\t\r]|\\[nrt s])+\]|[ \n\t\r]|\\[nrts])"
    r"(?P<times>[?*+]|\{\d{1,9}(?:,\d{0,9})?\})?"
)
_CHARS = {"\\n": "\n", "\\r": "\r", "\\t": "\t", "\\ ": " ", "\\s": " \t\n\r"}


def whitespace_pattern(pattern: str) -> str:
    """The pattern as llguidance reads it, which matches one character or more; "" for none.

    A pattern is a sequence of blanks, ``\\n``, ``\\s`` and classes of them, each with ``?`` or
    ``{m,n}``. Raises GrammarError where it is anything else, demands white space, or may match more
    than LONGEST characters.
    """
    parts: list[str] = []
    most, at = 0, 0
    while at < len(pattern):
        found = _ATOM.match(pattern, at)
        if found is None:
            raise GrammarError(
                f"whitespace pattern {pattern!r}: character {at} is not one of white space; "
                "use a pattern such as '[ \\n]{0,2}', or '' for none."
            )
        low, high = _times(found["times"])
        if high is None or most + high > LONGEST:
            raise GrammarError(
                f"whitespace pattern {pattern!r} may match more than {LONGEST} characters; "
                "bound it, for example '[ \\n]{0,2}'."
            )
        most += high
        parts.append(f"{_class(found['atom'])}{{{low},{high}}}")
        at = found.end()
    if most and any(_times(found["times"])[0] for found in _ATOM.finditer(pattern)):
        raise GrammarError(
            f"whitespace pattern {pattern!r} demands white space; let it match the empty text too, "
            "for example '[ \\n]{0,2}'."
        )
    return _some(parts) if most else ""


def _times(text: str | None) -> tuple[int, int | None]:
    if text is None:
        return 1, 1
    if text in "?*+":
        return {"?": (0, 1), "*": (0, None), "+": (1, None)}[text]
    low, comma, high = text[1:-1].partition(",")
    return int(low), (int(high) if high else None) if comma else int(low)


def _class(atom: str) -> str:
    """A class of the characters, written with escapes of two hexadecimal digits."""
    inner = atom[1:-1] if atom[0] == "[" else atom
    chars: set[str] = set()
    for piece in re.findall(r"\\.|.", inner, re.DOTALL):
        chars |= set(_CHARS.get(piece, piece))
    return "[" + "".join(f"\\x{ord(char):02X}" for char in sorted(chars)) + "]"


def _some(parts: list[str]) -> str:
    """A pattern for what the optional parts match less the empty text: the first part that is
    there, at least once, and those after it."""
    options = []
    for at, part in enumerate(parts):
        chars, _, times = part.partition("{")
        high = times[:-1].partition(",")[2]
        if high != "0":
            options.append(f"{chars}{{1,{high}}}" + "".join(parts[at + 1 :]))
    return "|".join(options)
