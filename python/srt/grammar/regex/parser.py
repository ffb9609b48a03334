"""Parser: the text of a pattern as a tree, in the syntax of Python 3.11's ``re`` for ``str``.

Beyond ``re``: ``\\p{L}`` and ``\\P{Nd}``, general categories of Unicode. Flags are applied here:
the tree knows sets of characters and assertions only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sglang.srt.grammar.regex.budget import Budget, InvalidPattern
from sglang.srt.grammar.regex.charset import (
    EVERYTHING,
    NEWLINE,
    CharSet,
    cases,
    fold_ascii,
    single,
)
from sglang.srt.grammar.regex.scanner import DIGITS, Scanner
from sglang.srt.grammar.regex.tree import (
    Assert,
    Chars,
    Either,
    Look,
    Node,
    Repeat,
    concat,
    either,
    width,
)

BLANKS = frozenset(" \t\n\r\v\f")
FLAGS = "aimsux"
TYPES = frozenset("au")
REPEATS = {"*": (0, None), "+": (1, None), "?": (0, 1)}
MOST_REPEATS = (1 << 32) - 1  # re's own limit


@dataclass(frozen=True)
class Flags:
    """Flags in force at a position of the pattern. ``a`` is the absence of ``u``."""

    a: bool = False
    i: bool = False
    m: bool = False
    s: bool = False
    x: bool = False

    def change(self, on: str, off: str) -> Flags:
        names = {name: True for name in on if name != "u"} | dict.fromkeys(off, False)
        if "u" in on:
            names["a"] = False
        return replace(self, **names)


def parse(pattern: str, budget: Budget) -> Node:
    """Parse a pattern into a tree. Raises InvalidPattern where ``re`` would not compile it, and
    BeyondBudget where it is larger than the budget or uses a feature that is not supported."""
    try:
        size = len(pattern.encode())
    except UnicodeEncodeError:
        raise InvalidPattern("regex holds a lone surrogate; no text can match it") from None
    scanner = Scanner(pattern)
    if size > budget.pattern:
        scanner.beyond(f"the pattern has {size} bytes; at most {budget.pattern}", budget.pattern)
    parser = _RegexParser(scanner, budget)
    node = parser.alternatives(Flags(), 0)
    if scanner.next:
        scanner.invalid("unbalanced parenthesis")
    return node


def _possessive(part: Chars, low: int, high: int | None) -> Repeat:
    """A possessive repeat of one set of characters: the next is not in it, or all are taken."""
    end = Look(part, behind=False, negative=True)
    if high is None:
        return Repeat(concat([Repeat(part, low, None), end]), 1, 1)
    full = Repeat(part, high, high)
    if low == high:
        return full
    fewer = concat([Repeat(part, low, high - 1), end])
    return Repeat(either([full, fewer]), 1, 1)


class _RegexParser:
    """``types``: which of the flags a and u were turned on for the whole pattern."""

    def __init__(self, scanner: Scanner, budget: Budget) -> None:
        self.scanner = scanner
        self.budget = budget
        self.folded: dict[tuple[CharSet, bool], CharSet] = {}
        self.types: set[str] = set()

    def alternatives(self, flags: Flags, depth: int) -> Node:
        """Parts between bars, up to a closing parenthesis or the end."""
        node, flags = self._sequence(flags, depth, first=depth == 0)
        nodes = [node]
        while self.scanner.match("|"):
            nodes.append(self._sequence(flags, depth, first=False)[0])
        return either(nodes)

    def _sequence(self, flags: Flags, depth: int, first: bool) -> tuple[Node, Flags]:
        """One alternative, and the flags that a group such as ``(?i)`` in it has set."""
        scanner = self.scanner
        parts: list[Node] = []
        while scanner.next and scanner.next not in "|)":
            begin = scanner.at
            char = scanner.take()
            if flags.x and (char in BLANKS or char == "#"):
                if char == "#":
                    scanner.skip("\n")
            elif char in REPEATS or char == "{":
                self._repeat(char, parts, flags, begin)
            elif char == "(":
                found = self._group(flags, depth, first and not parts, begin)
                if isinstance(found, Flags):
                    flags = found
                elif found is not None:
                    parts.append(found)
            else:
                parts.append(self._item(char, flags))
        return concat(parts), flags

    def _item(self, char: str, flags: Flags) -> Node:
        scanner = self.scanner
        if char == "[":
            return Chars(self._class(flags))
        if char == ".":
            return Chars(EVERYTHING if flags.s else NEWLINE.complement())
        if char == "^":
            return Assert("line start" if flags.m else "start")
        if char == "$":
            return Assert("line end" if flags.m else "tail")
        if char != "\\":
            return Chars(self._fold(single(ord(char)), flags))
        for letter, kind in (("A", "start"), ("Z", "end"), ("b", "edge"), ("B", "no edge")):
            if scanner.match(letter):
                return Assert(kind, flags.a)
        found = scanner.escape(False, flags.a)
        return Chars(found if isinstance(found, CharSet) else self._fold(single(found), flags))

    def _fold(self, members: CharSet, flags: Flags) -> CharSet:
        if not flags.i:
            return members
        key = members, flags.a
        if key not in self.folded:
            self.folded[key] = fold_ascii(members) if flags.a else cases().fold(members)
        return self.folded[key]

    # -- repetitions -----------------------------------------------------------------------------

    def _repeat(self, char: str, parts: list[Node], flags: Flags, begin: int) -> None:
        """Wrap the last of ``parts``, or add a brace that is one to it."""
        scanner = self.scanner
        counts: tuple[int, int | None] | None
        counts = self._counts(begin) if char == "{" else REPEATS[char]
        if counts is None:
            parts.append(Chars(single(ord("{"))))
            return
        if not parts or isinstance(parts[-1], Assert):  # one in a group may be repeated
            scanner.invalid("nothing to repeat", begin)
        if isinstance(parts[-1], Repeat):
            scanner.invalid("multiple repeat; put the first one in a group", begin)
        if not scanner.match("?") and scanner.match("+"):
            if not isinstance(parts[-1], Chars):
                scanner.beyond(
                    "a possessive repetition of more than one character is not supported; "
                    "use a plain one",
                    begin,
                )
            parts[-1] = _possessive(parts[-1], *counts)
            return
        parts[-1] = Repeat(parts[-1], *counts)

    def _counts(self, begin: int) -> tuple[int, int | None] | None:
        """Limits in the braces; None where they are plain characters."""
        scanner = self.scanner
        here = scanner.at
        if scanner.next == "}":
            return None
        low = scanner.span(DIGITS, 1 << 30)
        high = scanner.span(DIGITS, 1 << 30) if scanner.match(",") else low
        if not scanner.match("}"):
            scanner.at = here
            return None
        low, high = (digits and (digits.lstrip("0") or "0") for digits in (low, high))
        if max(len(low), len(high)) > 10 or max(int(low or 0), int(high or 0)) >= MOST_REPEATS:
            scanner.invalid("the repetition number is too large", begin)
        if low and high and int(high) < int(low):
            scanner.invalid("min repeat greater than max repeat", begin)
        return int(low or 0), int(high) if high else None

    # -- classes ---------------------------------------------------------------------------------

    def _class(self, flags: Flags) -> CharSet:
        """The set in square brackets, the first of which is taken."""
        scanner = self.scanner
        begin = scanner.at - 1
        negated = scanner.match("^")
        cased: list[tuple[int, int]] = []
        sets: list[CharSet] = []
        first = True
        while first or not scanner.match("]"):
            first = False
            here = scanner.at
            low = self._member(flags, begin)
            if scanner.next != "-" or scanner.text.startswith("-]", scanner.at):
                if isinstance(low, CharSet):
                    sets.append(low)
                else:
                    cased.append((low, low + 1))
                continue
            scanner.take()
            high = self._member(flags, begin)
            if isinstance(low, CharSet) or isinstance(high, CharSet) or high < low:
                scanner.invalid(f"bad character range {scanner.text[here : scanner.at]}", here)
            cased.append((low, high + 1))
        if cased:
            sets.append(self._fold(CharSet.of(cased), flags))
        found = CharSet.union(sets)
        return found.complement() if negated else found

    def _member(self, flags: Flags, begin: int) -> int | CharSet:
        scanner = self.scanner
        char = scanner.take()
        if not char:
            scanner.invalid("unterminated character set", begin)
        return scanner.escape(True, flags.a) if char == "\\" else ord(char)

    # -- groups ----------------------------------------------------------------------------------

    def _group(self, flags: Flags, depth: int, first: bool, begin: int) -> Node | Flags | None:
        """Read a parenthesis: a part, new flags for all that follows, or a comment."""
        scanner = self.scanner
        if not scanner.match("?"):
            scanner.groups += 1
            return self._inside(flags, depth, begin)
        if scanner.match("#"):
            if not scanner.skip(")"):
                scanner.invalid("missing ), unterminated comment", begin)
            return None
        for opening in ("=", "!", "<=", "<!"):
            if scanner.match(opening):
                return self._look(opening, flags, depth, begin)
        if scanner.match("P<"):
            self._name(begin)
            return self._inside(flags, depth, begin)
        if scanner.match(":"):
            return self._inside(flags, depth, begin)
        if scanner.match("P="):
            scanner.beyond("a back-reference is not supported; repeat the pattern itself", begin)
        if scanner.match("("):
            scanner.beyond("a conditional group is not supported; write both cases out", begin)
        if scanner.match(">"):
            scanner.beyond("an atomic group is not supported; use (?:...)", begin)
        if scanner.next and scanner.next in FLAGS + "-":
            return self._flags(flags, depth, first, begin)
        return scanner.invalid(f"unknown extension ?{scanner.text[scanner.at : scanner.at + 2]}")

    def _inside(self, flags: Flags, depth: int, begin: int) -> Node:
        """The alternatives in a group, and its closing parenthesis."""
        if depth >= self.budget.depth:
            self.scanner.beyond(
                f"groups are more than {self.budget.depth} deep; write it flatter", begin
            )
        node = self.alternatives(flags, depth + 1)
        if not self.scanner.match(")"):
            self.scanner.invalid("missing ), unterminated subpattern", begin)
        # A group of one assertion or repetition may be repeated, unlike the bare one.
        return Either((node,)) if isinstance(node, Assert | Repeat) else node

    def _name(self, begin: int) -> None:
        name = self.scanner.until(">", "group name")
        if not name.isidentifier():
            self.scanner.invalid(f"bad character in group name {name!r}", begin)
        if name in self.scanner.names:
            self.scanner.invalid(f"redefinition of group name {name!r}", begin)
        self.scanner.names.add(name)
        self.scanner.groups += 1

    def _look(self, opening: str, flags: Flags, depth: int, begin: int) -> Node:
        behind = opening[0] == "<"
        part = self._inside(flags, depth, begin)
        if behind:
            low, high = width(part)
            if low != high:
                self.scanner.invalid("look-behind requires fixed-width pattern", begin)
        return Look(part, behind, opening[-1] == "!")

    def _flags(self, flags: Flags, depth: int, first: bool, begin: int) -> Node | Flags:
        scanner = self.scanner
        on = scanner.span(frozenset(FLAGS), len(FLAGS) + 1)
        off = scanner.span(frozenset(FLAGS), len(FLAGS) + 1) if scanner.match("-") else None
        if TYPES.issubset(on):
            scanner.invalid("bad inline flags: flags 'a' and 'u' are incompatible", begin)
        if off is None and scanner.match(")"):
            if not first:
                scanner.invalid("global flags not at the start of the expression", begin)
            self.types |= TYPES & set(on)
            if len(self.types) == 2:
                scanner.invalid("ASCII and UNICODE flags are incompatible", begin)
            return flags.change(on, "")
        if not scanner.match(":"):
            scanner.invalid("unknown flag, or missing -, : or )")
        if off == "" or TYPES & set(off or "") or set(on) & set(off or ""):
            scanner.invalid("bad inline flags: they cannot be turned off so", begin)
        return self._inside(flags.change(on, off or ""), depth, begin)
