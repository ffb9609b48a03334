"""Syntax tree of an RE2 pattern: its atoms, assertions, groups and repeats.

Only the structure is parsed here. The characters that an atom matches (a class, an escape, a letter
under ``(?i)``) are not interpreted: ``StopAutomaton`` calls RE2 for that. RE2 must have compiled
the pattern before, so this parser does not look for errors.

The grammar is that of https://github.com/google/re2/wiki/Syntax. One construct is refused: ``\\C``,
a single byte of a character.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

MAX_DEPTH = 64  # groups inside groups: the tree is walked by recursion
_COUNT = "0|[1-9][0-9]{0,8}"  # braces around anything else, such as 01 or ٣, are literals
_REPEAT = re.compile(rf"\{{({_COUNT})(,({_COUNT})?)?\}}")
_FLAGS = re.compile(r"\?(?P<on>[imsU]*)(?:-(?P<off>[imsU]+))?(?P<end>[:)])")
_NAME = re.compile(r"\?P?<[^>]+>")
_ESCAPE = re.compile(r"\\(?:[pP](?:\{[^}]*\}|.)|x(?:\{[^}]*\}|..)|[0-7]{1,3}|.)", re.S)
_POSIX = re.compile(r"\[:\^?[a-z]+:\]")
_CLASS_ITEM = re.compile(rf"{_POSIX.pattern}|\\[dDsSwW]|\\[pP](?:\{{[^}}]*\}}|.)", re.S)
_ASSERTIONS = {r"\b": "word", r"\B": "not word", r"\A": "begin text", r"\z": "end text"}


@dataclass(frozen=True, slots=True)
class Atom:
    """A pattern of one character. ``source``: the pattern with the flags in effect. ``text``: the
    only character that it matches, "" if RE2 must decide."""

    source: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class Assertion:
    """A condition on the two bytes around a boundary (``stop_automaton.holds``)."""

    name: str


@dataclass(frozen=True, slots=True)
class Re2Sequence:
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Re2Choice:
    branches: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Re2Repeat:
    """``node`` repeated ``least`` to ``most`` times; -1: any number. Greediness is ignored."""

    node: Node
    least: int
    most: int


Node = Atom | Assertion | Re2Sequence | Re2Choice | Re2Repeat


@dataclass(slots=True)
class _Group:
    """A group whose parsing is not finished, with the flags to restore after it."""

    flags: frozenset[str]
    branches: list[list[Node]] = field(default_factory=lambda: [[]])

    def node(self) -> Node:
        branches = tuple(Re2Sequence(tuple(branch)) for branch in self.branches)
        return branches[0] if len(branches) == 1 else Re2Choice(branches)


def parse(pattern: str) -> Node:
    """Parse a pattern that RE2 has compiled. Raises ValueError for ``\\C`` and deep nesting."""
    return _Re2Parser(pattern).parse()


class _Re2Parser:
    def __init__(self, pattern: str) -> None:
        self._pattern, self._at = pattern, 0
        self._flags: frozenset[str] = frozenset()
        self._groups = [_Group(self._flags)]

    def parse(self) -> Node:
        while self._at < len(self._pattern):
            self._next(self._pattern[self._at])
        if len(self._groups) != 1:
            raise ValueError(f"stop_regex {self._pattern!r} has a group without an end.")
        return self._groups[0].node()

    def _next(self, char: str) -> None:
        branch = self._groups[-1].branches[-1]
        if char == "(":
            self._open()
        elif char == ")":
            self._at += 1
            group = self._groups.pop()
            self._flags = group.flags
            self._groups[-1].branches[-1].append(group.node())
        elif char == "|":
            self._at += 1
            self._groups[-1].branches.append([])
        elif char in "*+?" or (char == "{" and _REPEAT.match(self._pattern, self._at)):
            self._repeat(char, branch)
        elif char == "^":
            self._at += 1
            branch.append(Assertion("begin line" if "m" in self._flags else "begin text"))
        elif char == "$":
            self._at += 1
            branch.append(Assertion("end line" if "m" in self._flags else "end text"))
        elif char == "\\":
            self._escape(branch)
        else:
            end = self._class_end() if char == "[" else self._at + 1
            branch.append(self._atom(end, "" if char in "[." else char))

    def _atom(self, end: int, text: str = "") -> Atom:
        source, self._at = self._pattern[self._at : end], end
        return self._flagged(source, text)

    def _flagged(self, source: str, text: str) -> Atom:
        flags = "".join(sorted(self._flags & {"i", "s"}))
        return Atom(f"(?{flags}:{source})", "" if "i" in flags else text)

    def _open(self) -> None:
        self._at += 1
        flags = _FLAGS.match(self._pattern, self._at)
        outside = self._flags
        if flags is not None:
            self._at = flags.end()
            self._flags = self._flags.union(flags["on"]).difference(flags["off"] or "")
            if flags["end"] == ")":
                return  # the flags apply up to the end of the enclosing group
        elif name := _NAME.match(self._pattern, self._at):
            self._at = name.end()
        if len(self._groups) > MAX_DEPTH:
            raise ValueError(
                f"stop_regex nests more than {MAX_DEPTH} groups; write it with fewer parentheses."
            )
        self._groups.append(_Group(outside))

    def _repeat(self, char: str, branch: list[Node]) -> None:
        least, most = {"*": (0, -1), "+": (1, -1), "?": (0, 1)}.get(char, (0, 0))
        self._at += 1
        if char == "{":
            found = _REPEAT.match(self._pattern, self._at - 1)
            assert found is not None
            self._at, least = found.end(), int(found[1])
            most = least if found[2] is None else int(found[3]) if found[3] else -1
        if self._pattern[self._at : self._at + 1] == "?":
            self._at += 1
        if not _takes(branch[-1]):  # a repeat of an empty match equals one empty match
            least, most = min(least, 1), 1
        branch[-1] = Re2Repeat(branch[-1], least, most)

    def _escape(self, branch: list[Node]) -> None:
        two = self._pattern[self._at : self._at + 2]
        if two == r"\Q":
            end = self._pattern.find(r"\E", self._at + 2)
            end = len(self._pattern) if end < 0 else end
            branch += [self._flagged(re.escape(c), c) for c in self._pattern[self._at + 2 : end]]
            self._at = end + 2
        elif two == r"\E":  # ignored without a preceding \Q
            self._at += 2
        elif two == r"\C":
            raise ValueError(r"stop_regex has \C, a byte of a character; use . (any character).")
        elif two in _ASSERTIONS:
            self._at += 2
            branch.append(Assertion(_ASSERTIONS[two]))
        else:
            found = _ESCAPE.match(self._pattern, self._at)
            assert found is not None
            branch.append(self._atom(found.end()))

    def _class_end(self) -> int:
        """Return the index after the end of the class that begins at the current index."""
        at, text = self._at + 1, self._pattern
        at += text[at] == "^"
        first = at
        while text[at] != "]" or at == first:
            if item := _CLASS_ITEM.match(text, at):
                at = item.end()
                continue
            at = self._member_end(at)
            if text[at] == "-" and text[at + 1] != "]":  # a range, which may end in "["
                at = self._member_end(at + 1)
        return at + 1

    def _member_end(self, at: int) -> int:
        """Return the index after the class member, one character or escape, at index ``at``."""
        found = _ESCAPE.match(self._pattern, at)
        return found.end() if found else at + 1


def _takes(node: Node) -> bool:
    """Return True if the node contains an atom."""
    if isinstance(node, Re2Sequence):
        return any(map(_takes, node.parts))
    if isinstance(node, Re2Choice):
        return any(map(_takes, node.branches))
    return _takes(node.node) if isinstance(node, Re2Repeat) else isinstance(node, Atom)
