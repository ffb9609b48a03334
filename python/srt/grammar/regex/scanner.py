"""Scanner: a pattern read character by character, and its escapes."""

from __future__ import annotations

import unicodedata
from typing import NoReturn

from sglang.srt.grammar.regex.budget import BeyondBudget, InvalidPattern
from sglang.srt.grammar.regex.charset import CharSet, category, shorthand

CONTROLS = {"a": 7, "b": 8, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11, "\\": 92}
HEX_DIGITS = frozenset("0123456789abcdefABCDEF")
OCTAL_DIGITS = frozenset("01234567")
DIGITS = frozenset("0123456789")


class Scanner:
    """``at`` is the next character's index; ``groups`` counts the capturing groups opened."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.groups = 0
        self.names: set[str] = set()

    @property
    def next(self) -> str:
        """The next character; "" at the end."""
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        char = self.text[self.at : self.at + 1]
        self.at += 1
        return char

    def match(self, text: str) -> bool:
        if self.text.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def span(self, allowed: frozenset[str], most: int) -> str:
        """The longest run of allowed characters, at most ``most``."""
        begin = self.at
        while self.at - begin < most and self.next and self.next in allowed:
            self.at += 1
        return self.text[begin : self.at]

    def skip(self, end: str) -> bool:
        """Go after the next ``end``, whether there is one or not. A backslash and what follows
        are one thing to ``re``, even in a comment."""
        while self.next:
            char = self.take()
            if char == end:
                return True
            if char == "\\" and not self.take():
                self.invalid("bad escape (end of pattern)")
        return False

    def until(self, end: str, what: str) -> str:
        """Take the text before ``end``, and ``end`` itself."""
        stop = self.text.find(end, self.at)
        if stop < 0:
            self.invalid(f"missing {end}, unterminated {what}")
        if stop == self.at:
            self.invalid(f"missing {what}")
        found = self.text[self.at : stop]
        self.at = stop + 1
        return found

    def invalid(self, what: str, at: int | None = None) -> NoReturn:
        raise InvalidPattern(f"regex[{min(self.at if at is None else at, len(self.text))}]: {what}")

    def beyond(self, what: str, at: int | None = None) -> NoReturn:
        raise BeyondBudget(f"regex[{self.at if at is None else at}]: {what}")

    # -- escapes ---------------------------------------------------------------------------------

    def escape(self, in_class: bool, ascii_only: bool) -> int | CharSet:
        """Read an escape behind its backslash: a character, or a set of them.

        The caller reads assertions. Raises BeyondBudget for a back-reference.
        """
        begin = self.at - 1
        letter = self.take()
        if not letter:
            self.invalid("bad escape (end of pattern)", begin)
        if letter in "dDsSwW":
            return shorthand(letter, ascii_only)
        if letter in CONTROLS:
            return CONTROLS[letter]
        if letter in "xuU":
            return self._hex(letter, begin)
        if letter == "N":
            return self._named(begin)
        if letter in "pP":
            return self._category(letter, begin)
        if letter in DIGITS:
            return self._octal(letter, begin, in_class)
        if letter.isascii() and letter.isalpha():
            self.invalid(f"bad escape \\{letter}", begin)
        return ord(letter)

    def _hex(self, letter: str, begin: int) -> int:
        size = {"x": 2, "u": 4, "U": 8}[letter]
        digits = self.span(HEX_DIGITS, size)
        if len(digits) != size:
            self.invalid(f"incomplete escape \\{letter}{digits}; give {size} digits", begin)
        point = int(digits, 16)
        if point > 0x10FFFF:
            self.invalid(f"bad escape \\{letter}{digits}: there is no such code point", begin)
        return point

    def _named(self, begin: int) -> int:
        if not self.match("{"):
            self.invalid("missing { after \\N", begin)
        name = self.until("}", "character name")
        try:
            return ord(unicodedata.lookup(name))
        except (KeyError, TypeError):
            self.invalid(f"undefined character name {name!r}", begin)

    def _category(self, letter: str, begin: int) -> CharSet:
        name = self.until("}", "property name") if self.match("{") else self.take()
        negated = (letter == "P") != name.startswith("^")
        found = category(name.removeprefix("^"))
        if found is None:
            self.beyond(
                f"\\{letter}{{{name}}}: only general categories such as \\p{{L}} or \\p{{Nd}} "
                "are supported; write the characters as ranges",
                begin,
            )
        return found.complement() if negated else found

    def _octal(self, digit: str, begin: int, in_class: bool) -> int:
        digits = digit
        if digit == "0" or (in_class and digit in OCTAL_DIGITS):
            digits += self.span(OCTAL_DIGITS, 2)
        elif in_class:
            self.invalid(f"bad escape \\{digit}", begin)
        else:
            if self.next and self.next in DIGITS:
                digits += self.take()
                if OCTAL_DIGITS.issuperset(digits):
                    digits += self.span(OCTAL_DIGITS, 1)
            if len(digits) < 3:
                self._reference(int(digits), begin)
        if int(digits, 8) > 0o377:
            self.invalid(f"octal escape value \\{digits} outside of range 0-0o377", begin)
        return int(digits, 8)

    def _reference(self, group: int, begin: int) -> NoReturn:
        if group > self.groups:
            self.invalid(f"invalid group reference {group}", begin)
        self.beyond("a back-reference is not supported; repeat the pattern itself", begin)
