"""Literal: a value as Python writes it, read character by character and said as JSON."""

from __future__ import annotations

import json
import re

from sglang.semantics.tool_calls.json_scan import SPACE

DEEPEST = 128
LONGEST = 400  # characters of a number or word
_WORDS = {"True": "true", "False": "false", "None": "null",
          "true": "true", "false": "false", "null": "null"}  # fmt: skip
_NUMBER = re.compile(r"([+-]?)([0-9]+(?:_[0-9]+)*)?(?:\.([0-9]*))?([eE][+-]?[0-9]+)?")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0",
            "\\": "\\", "'": "'", '"': '"', "/": "/", "\n": ""}  # fmt: skip
_IN_STRING = re.compile(r"[^'\"\\]+")
_HEX = {"x": 2, "u": 4, "U": 8}
_CLOSES = {"[": "]", "{": "}"}


class Literal:
    """Strings, numbers, ``True``, ``False``, ``None``, lists, and dicts with string keys; words of
    JSON too.

    Attributes:
        done: the value is complete. wrong: it is none.
    """

    def __init__(self) -> None:
        self.done = self.wrong = False
        self._closers: list[str] = []  # closing characters of open brackets
        self._quote = ""
        self._kept = ""  # characters of a number, a word or an escape
        self._state = "value"  # or "key", "colon", "behind"
        self._comma = ""  # text to emit before the next value or key
        self._may_close = False  # a bracket may close in place of it

    def run(self, text: str, at: int) -> tuple[str, int]:
        """JSON of the characters of ``text`` from ``at`` on that are inside a string, and where
        they end: they need not be taken one by one."""
        if not self._quote or self._kept:
            return "", at
        found = _IN_STRING.match(text, at)
        return (_inside(found[0]), found.end()) if found else ("", at)

    def take(self, char: str) -> tuple[str, bool]:
        """JSON that ``char`` adds, and whether it belongs to the value: the one after a number or
        a word at the top does not."""
        if self._quote:
            return self._in_string(char), True
        if not self._kept:
            return self._outside(char), True
        if char.isalnum() or char in "+-._":
            self._kept += char
            self.wrong = len(self._kept) > LONGEST
            return "", True
        text = self._word()
        if self.done or self.wrong:
            return text, False
        return text + self._outside(char), True

    def _outside(self, char: str) -> str:
        """Read a character between strings, numbers and words."""
        if char in SPACE:
            return ""
        if self._state == "behind":
            return self._behind(char)
        if self._state == "colon":
            self._state, self.wrong = "value", char != ":"
            return ": "
        if self._may_close and char == self._closers[-1]:
            return self._shut()
        comma, self._comma, self._may_close = self._comma, "", False
        if char in "'\"":
            self._quote = char
            return comma + '"'
        if self._state == "key":
            self.wrong = True
        elif char in _CLOSES:
            self.wrong = len(self._closers) == DEEPEST
            self._closers.append(_CLOSES[char])
            self._state, self._may_close = "key" if char == "{" else "value", True
            return comma + char
        else:
            self._kept = char
            self.wrong = not (char.isalnum() or char in "+-.")
        return comma

    def _behind(self, char: str) -> str:
        """Read a character after a value in brackets."""
        closer = self._closers[-1]
        if char == closer:
            return self._shut()
        self.wrong = char != ","
        self._state, self._comma, self._may_close = "key" if closer == "}" else "value", ", ", True
        return ""

    def _shut(self) -> str:
        closer = self._closers.pop()
        self._comma, self._may_close = "", False
        self._valued()
        return closer

    def _valued(self) -> None:
        self._state = "behind"
        self.done = not self._closers

    def _word(self) -> str:
        """The number or word that has ended."""
        text, self._kept = self._kept, ""
        said = _WORDS.get(text) or _number(text)
        self.wrong = not said
        self._valued()
        return said

    def _in_string(self, char: str) -> str:
        if self._kept:
            return self._escape(char)
        if char == "\\":
            self._kept = char
            return ""
        if char != self._quote:
            return _inside(char)
        self._quote = ""
        if self._state == "key":
            self._state = "colon"
        else:
            self._valued()
        return '"'

    def _escape(self, char: str) -> str:
        self._kept += char
        kind = self._kept[1]
        if kind not in _HEX:
            self._kept = ""
            return _inside(_ESCAPES.get(kind, "\\" + kind))
        if len(self._kept) < 2 + _HEX[kind]:
            return ""
        digits, self._kept = self._kept[2:], ""
        try:
            code = int(digits, 16)
            return f"\\u{code:04x}" if code < 1 << 16 else _inside(chr(code))
        except (ValueError, OverflowError):
            self.wrong = True
            return ""


def _inside(text: str) -> str:
    """Escape a text for a string of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _number(text: str) -> str:
    """A number as JSON writes it, "" where the text is none."""
    found = _NUMBER.fullmatch(text)
    if not found or not (found[2] or found[3]):
        return ""
    whole = (found[2] or "").replace("_", "").lstrip("0") or "0"
    part = "" if found[3] is None else f".{found[3] or '0'}"
    return f"{found[1].strip('+')}{whole}{part}{found[4] or ''}"
