"""Search by a regular expression of RE2's language: no lookaround, no backreference.

RE2 itself searches where it is installed (extra ``srt``); it takes time linear in the text. The
frontend alone has Python's ``re``: there a pattern is rewritten so that both find the same, and is
refused where they could differ.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, NamedTuple

try:
    import re2
except ImportError:
    re2 = None

MOST_PATTERN = 1000  # characters of a pattern
MOST_SEARCHED = 65_536  # characters of a text
RE2_MEMORY = 1 << 17  # bytes; bounds the size of the automaton, and with it the time of a search

ESCAPES = {"s": r"[\t\n\f\r ]", "S": r"[^\t\n\f\r ]", "z": r"\Z"}
IN_CLASS = {"s": r"\t\n\f\r "}
LETTERS = "dDwWntrfva"  # escapes by a letter that mean the same in both, inside of a class too
BOUNDARIES = "bBA"
FLAGS = re.compile(r"\(\?([is]+)\)")
GROUP = re.compile(r"\((\?:|\?P<[A-Za-z_][A-Za-z0-9_]*>|(?!\?))")
QUANTIFIER = re.compile(r"[*+?]|\{(\d+)(,\d*)?\}")
INSTALL = "install google-re2, or write it without"


def search(pattern: str, group: int | str, text: str) -> str:
    """Return group ``group`` of the first match of ``pattern`` in ``text``.

    Raise ValueError for a pattern that RE2 refuses, for a group that it does not have, for a text
    without a match or whose match has no part for the group, and for a text of more than
    ``MOST_SEARCHED`` characters.
    """
    if len(text) > MOST_SEARCHED:
        raise ValueError(
            f"the text has {len(text)} characters; a regex searches at most {MOST_SEARCHED}"
        )
    verify_group(pattern, group)
    found = compiled(pattern).search(text)
    if found is None:
        raise ValueError(f"nothing in the text matches {pattern!r:.80}")
    taken = found.group(group)
    if taken is None:
        raise ValueError(f"group {group!r} of {pattern!r:.80} took no part in the match")
    return str(taken)


def verify_group(pattern: str, group: int | str) -> None:
    """Raise ValueError for a pattern that RE2 refuses, and for a group that it does not have."""
    found = compiled(pattern)
    expression = found.pattern if isinstance(found, AsciiOnly) else found
    names = list(expression.groupindex)
    if group in names if isinstance(group, str) else group <= expression.groups:
        return
    known = f"groups 0 to {expression.groups}" + (f" and {names!r:.80}" if names else "")
    raise ValueError(f"the pattern {pattern!r:.80} has no group {group!r:.60}; it has {known}")


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Any:
    """Return an object with ``search``. Raise ValueError for a pattern that RE2 refuses."""
    if len(pattern) > MOST_PATTERN:
        raise ValueError(f"the pattern has {len(pattern)} characters; at most {MOST_PATTERN}")
    if re2 is None:
        return translated(pattern)
    options = re2.Options()
    options.log_errors = False
    options.max_mem = RE2_MEMORY
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        raise ValueError(f"RE2 refuses the pattern {pattern!r:.80}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    first = error.args[0] if error.args else ""
    return first.decode(errors="replace") if isinstance(first, bytes) else str(error)


class AsciiOnly(NamedTuple):
    """A pattern that ignores case. Beyond ASCII, RE2 and ``re`` know different pairs of letters."""

    pattern: re.Pattern[str]

    def search(self, text: str) -> re.Match[str] | None:
        if not text.isascii():
            raise ValueError(
                "a pattern that ignores case, (?i), searches a text beyond ASCII with RE2 alone: "
                + INSTALL
            )
        return self.pattern.search(text)


def translated(pattern: str) -> Any:
    """Return ``pattern`` for Python's ``re``, with ``search``.

    Raise ValueError for what RE2 has not, and for what it may understand in another way.
    """
    flags = re.ASCII
    begin = FLAGS.match(pattern)
    if begin is not None:
        flags |= re.IGNORECASE * ("i" in begin[1]) | re.DOTALL * ("s" in begin[1])
    rewritten = _Rewriting(pattern, begin.end() if begin else 0).all()
    try:
        found = re.compile(rewritten, flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"the pattern {pattern!r:.80} is refused: {error}") from None
    if not flags & re.IGNORECASE:
        return found
    if not pattern.isascii():
        raise ValueError(f"the pattern {pattern!r:.80} ignores case beyond ASCII; {INSTALL}")
    return AsciiOnly(found)


class _Rewriting:
    """A pattern on its way from RE2's language to Python's; ``at``: how far it is read."""

    def __init__(self, pattern: str, at: int) -> None:
        self.pattern, self.at = pattern, at
        self.out: list[str] = []
        self.opened: list[int] = []  # where the open groups begin in ``out``

    def all(self) -> str:
        """Return the whole pattern rewritten."""
        while self.at < len(self.pattern):
            char = self.pattern[self.at]
            if char == "\\":
                self._escape()
            elif char == "[":
                self._class()
            elif char == "(":
                self._open()
            elif char == ")":
                self._close()
            else:
                self._plain(char)
        return "".join(self.out)

    def _refuse(self, what: str) -> ValueError:
        shown = self.pattern[self.at : self.at + 8]
        return ValueError(
            f"{what} at character {self.at} of the pattern, {shown!r}, is refused: {INSTALL}"
        )

    def _take(self, count: int, instead: str | None = None) -> None:
        self.out.append(self.pattern[self.at : self.at + count] if instead is None else instead)
        self.at += count

    def _plain(self, char: str) -> None:
        found = QUANTIFIER.match(self.pattern, self.at)
        if found is not None:
            self._quantifier(found)
        elif char == "{":
            if self.pattern.startswith("{,", self.at):
                raise self._refuse("a repetition without a least number")
            self._take(1)
        else:
            self._take(1, r"\Z" if char == "$" else None)

    def _quantifier(self, found: re.Match[str]) -> None:
        if found[1] and max(int(n) for n in re.findall(r"\d+", found[0])) > 1000:
            raise self._refuse("a repetition of more than 1000")
        self._take(len(found[0]) + self.pattern.startswith("?", found.end()))
        if QUANTIFIER.match(self.pattern, self.at):
            raise self._refuse("a second repetition")

    def _escape(self) -> None:
        char = self.pattern[self.at + 1 : self.at + 2]
        if char in ESCAPES:
            self._take(2, ESCAPES[char])
        elif char in BOUNDARIES and char:
            self._take(2)
        else:
            self._letter(char)

    def _letter(self, char: str) -> None:
        """An escape that means the same inside of a class."""
        if char == "x" and re.match(r"[0-9A-Fa-f]{2}", self.pattern[self.at + 2 :]):
            self._take(4)
        elif char and (char in LETTERS or (char.isascii() and not char.isalnum())):
            self._take(2)
        else:
            raise self._refuse("an escape that the two do not share, or a backreference")

    def _class(self) -> None:
        self._take(2 if self.pattern.startswith("[^", self.at) else 1)
        first = self.at
        while self.at < len(self.pattern):
            char = self.pattern[self.at]
            if char == "]" and self.at > first:
                self._take(1)
                return
            if char == "[":
                self._take(1, r"\[")
                if self.pattern.startswith(":", self.at):
                    raise self._refuse("a named class")
            elif char == "\\" and self.pattern[self.at + 1 : self.at + 2] in IN_CLASS:
                self._take(2, IN_CLASS[self.pattern[self.at + 1]])
            elif char == "\\":
                self._letter(self.pattern[self.at + 1 : self.at + 2])
            else:
                self._take(1, r"\]" if char == "]" else None)
        raise self._refuse("a class that is not closed")

    def _open(self) -> None:
        found = GROUP.match(self.pattern, self.at)
        if found is None:
            raise self._refuse("a group that the two do not share, such as lookaround")
        self.opened.append(len(self.out))
        self._take(len(found[0]))

    def _close(self) -> None:
        self._take(1)
        begin = self.opened.pop() if self.opened else 0
        if not QUANTIFIER.match(self.pattern, self.at):
            return
        try:
            empty = re.compile("".join(self.out[begin:])).fullmatch("")
        except re.error as error:
            raise self._refuse(f"a group ({error})") from None
        if empty is not None:
            raise self._refuse("a repetition of what may be empty")
