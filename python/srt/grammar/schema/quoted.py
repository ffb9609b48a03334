"""Text as it stands in JSON strings, as terminals of llguidance's Lark.

Every text has one spelling: a quote, a backslash and a control character are escaped, in the
shortest way, and nothing else is. So two names of an object are equal where their spellings are,
and a length counts characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from sglang.srt.grammar.regex.charset import EVERYTHING, CharSet

ESCAPES = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\\\"}
ESCAPED = CharSet.of([(0, 32), (34, 35), (92, 93)])
SURROGATES = CharSet((0xD800, 0xE000))
CHAR = r'(?:[^"\\\x00-\x1f]|\\["\\bfnrt]|\\u00(?:0[0-7be-f]|1[0-9a-f]))'  # any one character
STRING = f'/"{CHAR}*"/'
NEVER = r"[^\x00-\U0010ffff]"  # a class of no character


def literal(text: str) -> str:
    """A string of Lark that is the JSON of ``text``."""
    return json.dumps(json.dumps(text, ensure_ascii=False), ensure_ascii=False)


def literals(texts: Iterable[str]) -> str:
    """Any of the texts."""
    return "(" + " | ".join(map(literal, texts)) + ")"


def sized(low: int, high: int | None) -> str:
    """A string of ``low`` to ``high`` characters."""
    return f'/"{CHAR}{{{low},{"" if high is None else high}}}"/'


def any_of(members: CharSet) -> str:
    """A pattern for one character of the set, as JSON spells it."""
    if members == EVERYTHING:
        return CHAR
    parts = []
    raw = minus(members, ESCAPED)
    if raw.points:
        parts.append(ranges(raw))
    for point in range(128):
        if point in ESCAPED and point in members:
            short = ESCAPES.get(point)
            parts.append(rf"\\{short}" if short else rf"\\u{point:04x}")
    if not parts:
        return NEVER
    return parts[0] if len(parts) == 1 else f"(?:{'|'.join(parts)})"


def minus(left: CharSet, right: CharSet) -> CharSet:
    return CharSet.union([left.complement(), right]).complement()


def common(left: CharSet, right: CharSet) -> CharSet:
    return CharSet.union([left.complement(), right.complement()]).complement()


def ranges(members: CharSet) -> str:
    """A class of code points."""
    parts = []
    for begin, end in minus(members, SURROGATES).ranges():
        parts.append(_point(begin) + (f"-{_point(end - 1)}" if end - begin > 1 else ""))
    return f"[{''.join(parts)}]" if parts else NEVER


def _point(code: int) -> str:
    char = chr(code)
    if re.fullmatch("[A-Za-z0-9]", char):
        return char
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
