"""GBNF, the grammar notation of llama.cpp, as a tree.

Beyond llama.cpp: a rule goes on in the next line unless a rule begins there, may end with ``;`` and
may refer to itself on its left."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.regex.charset import EVERYTHING, CharSet, single

DEEPEST = 64
MOST_REPEATS = 2000
SURROGATES = (0xD800, 0xE000)
DIGITS = frozenset("0123456789")
HEX = frozenset("0123456789abcdefABCDEF")
NAME = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
ESCAPES = {"n": "\n", "r": "\r", "t": "\t"} | {char: char for char in '\\"[]-^/'}
HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}


@dataclass(frozen=True, eq=False)
class GbnfChars:
    """One character."""

    members: CharSet


@dataclass(frozen=True, eq=False)
class GbnfText:
    """Two characters or more."""

    text: str


@dataclass(frozen=True, eq=False)
class GbnfSequence:
    parts: tuple[GbnfNode, ...]


@dataclass(frozen=True, eq=False)
class GbnfEither:
    parts: tuple[GbnfNode, ...]


@dataclass(frozen=True, eq=False)
class GbnfRepeat:
    part: GbnfNode
    low: int
    high: int | None


@dataclass(frozen=True, eq=False)
class GbnfRef:
    name: str
    at: int


@dataclass(frozen=True, eq=False)
class GbnfRun:
    """``low`` to ``high`` characters of a set, or, ``looped``, as many as there are of a loop's
    alternatives that are one character. The parser makes none."""

    members: CharSet
    low: int
    high: int | None
    looped: bool


GbnfNode = GbnfChars | GbnfText | GbnfSequence | GbnfEither | GbnfRepeat | GbnfRef | GbnfRun
EMPTY = GbnfSequence(())


@dataclass(frozen=True)
class Rule:
    body: GbnfNode
    at: int


def sequence(parts: list[GbnfNode]) -> GbnfNode:
    """One part after another; literals in a row are one."""
    flat: list[GbnfNode] = []
    for part in parts:
        flat += part.parts if isinstance(part, GbnfSequence) else [part]
    found: list[GbnfNode] = []
    text = ""
    for one in [*flat, None]:
        char = _plain(one)
        text += char
        if not char:
            if len(text) == 1:
                found.append(GbnfChars(single(ord(text))))
            elif text:
                found.append(GbnfText(text))
            if one:
                found.append(one)
            text = ""
    return found[0] if len(found) == 1 else GbnfSequence(tuple(found)) if found else EMPTY


def _plain(node: GbnfNode | None) -> str:
    """The text of a literal; "" of anything else."""
    if isinstance(node, GbnfText):
        return node.text
    points = node.members.points if isinstance(node, GbnfChars) else ()
    return chr(points[0]) if len(points) == 2 and points[1] == points[0] + 1 else ""


def either(parts: list[GbnfNode]) -> GbnfNode:
    """Alternatives; those of one character are one set."""
    flat: list[GbnfNode] = []
    for part in parts:
        flat += part.parts if isinstance(part, GbnfEither) else [part]
    sets = [part.members for part in flat if isinstance(part, GbnfChars)]
    if len(sets) > 1:
        rest: list[GbnfNode] = [part for part in flat if not isinstance(part, GbnfChars)]
        flat = [GbnfChars(CharSet.union(sets)), *rest]
    return flat[0] if len(flat) == 1 else GbnfEither(tuple(flat))


def repeat(part: GbnfNode, low: int, high: int | None) -> GbnfNode:
    """One of two marks such as ``*`` and ``?`` after each other stands for both."""
    if high == 0 or part is EMPTY:
        return EMPTY
    marks = REPEATS.values()
    if isinstance(part, GbnfRepeat) and (part.low, part.high) in marks and (low, high) in marks:
        return GbnfRepeat(part.part, min(low, part.low), 1 if high == part.high == 1 else None)
    return part if low == high == 1 else GbnfRepeat(part, low, high)


def children(node: GbnfNode) -> tuple[GbnfNode, ...]:
    if isinstance(node, GbnfSequence | GbnfEither):
        return node.parts
    return (node.part,) if isinstance(node, GbnfRepeat) else ()


def refs(node: GbnfNode) -> Iterator[GbnfRef]:
    """The references in a tree, from left to right."""
    if isinstance(node, GbnfRef):
        yield node
    for child in children(node):
        yield from refs(child)


def parse(text: str) -> dict[str, Rule]:
    """The rules that root needs, root the first. Raises GrammarError."""
    parser = _GbnfParser(text)
    rules = parser.rules()
    if "root" not in rules:
        raise GrammarError("ebnf has no rule named root; name the first rule so.")
    for rule in rules.values():
        for ref in refs(rule.body):
            if ref.name not in rules:
                parser.fail(f"there is no rule {ref.name!r}", ref.at)
    needed = reachable(rules)
    endless = needed.keys() - _productive(needed)
    for name in needed:
        if name in endless:
            parser.fail(
                f"no text satisfies rule {name!r}, which needs itself; give it a way to end",
                needed[name].at,
            )
    return needed


def reachable(rules: dict[str, Rule]) -> dict[str, Rule]:
    """The rules that root needs, root the first."""
    found, waiting = {"root": rules["root"]}, ["root"]
    while waiting:
        for ref in refs(rules[waiting.pop()].body):
            if ref.name not in found:
                found[ref.name] = rules[ref.name]
                waiting.append(ref.name)
    return found


def _productive(rules: dict[str, Rule]) -> set[str]:
    """Names of the rules that some finite text satisfies."""
    found: set[str] = set()
    users: dict[str, set[str]] = {name: set() for name in rules}
    for name, rule in rules.items():
        for ref in refs(rule.body):
            users[ref.name].add(name)
    waiting = list(rules)
    while waiting:
        name = waiting.pop()
        if name not in found and _ends(rules[name].body, found):
            found.add(name)
            waiting += users[name]
    return found


def _ends(node: GbnfNode, known: set[str]) -> bool:
    if isinstance(node, GbnfRef):
        return node.name in known
    if isinstance(node, GbnfEither):
        return any(_ends(part, known) for part in node.parts)
    if isinstance(node, GbnfRepeat) and node.low == 0:
        return True
    return all(_ends(part, known) for part in children(node))


class _GbnfParser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, reason: str, at: int | None = None) -> NoReturn:
        at = self.at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        raise GrammarError(f"ebnf at line {line}, column {column}: {reason}.")

    def rules(self) -> dict[str, Rule]:
        found: dict[str, Rule] = {}
        self._blanks()
        while self._next:
            begin = self.at
            name = self._span(NAME)
            if not name:
                self._unexpected("the name of a rule")
            self._blanks()
            if not self._match("::="):
                self._unexpected("::=")
            if name in found:
                self.fail(f"there are two rules {name!r}; join them with |", begin)
            self._blanks()
            found[name] = Rule(self._alternatives(0), begin)
            if self._match(";"):
                self._blanks()
            elif self._next and self._next not in NAME:
                self._unexpected("a rule, or a part of one")
        return found

    # -- characters ------------------------------------------------------------------------------

    @property
    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _match(self, text: str) -> bool:
        found = self.text.startswith(text, self.at)
        self.at += len(text) if found else 0
        return found

    def _span(self, chars: frozenset[str]) -> str:
        begin = self.at
        while self._next and self._next in chars:
            self.at += 1
        return self.text[begin : self.at]

    def _blanks(self) -> None:
        """White space and comments, line feeds among them."""
        while self._next and self._next in " \t\r\n#":
            if self._next == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                self.at += 1

    def _unexpected(self, wanted: str) -> NoReturn:
        found = repr(self._next) if self._next else "the end"
        self.fail(f"{found} where {wanted} is due")

    # -- parts -----------------------------------------------------------------------------------

    def _alternatives(self, depth: int) -> GbnfNode:
        parts = [self._sequence(depth)]
        while self._match("|"):
            self._blanks()
            parts.append(self._sequence(depth))
        return either(parts)

    def _sequence(self, depth: int) -> GbnfNode:
        parts: list[GbnfNode] = []
        while (part := self._part(depth)) is not None:
            self._blanks()
            parts.append(self._repeated(part))
        return sequence(parts)

    def _part(self, depth: int) -> GbnfNode | None:
        """None at the end of the sequence, where the next rule begins among others."""
        begin = self.at
        if self._match('"'):
            return self._literal(begin)
        if self._match("["):
            return self._class(begin)
        if self._match("."):
            return GbnfChars(EVERYTHING)
        if self._match("("):
            return self._group(begin, depth)
        name = self._span(NAME)
        if not name:
            return None
        end = self.at
        self._blanks()
        if self.text.startswith("::=", self.at):
            self.at = begin
            return None
        self.at = end
        return GbnfRef(name, begin)

    def _group(self, begin: int, depth: int) -> GbnfNode:
        if depth >= DEEPEST:
            self.fail(f"nested more than {DEEPEST} levels deep; make rules of the parts", begin)
        self._blanks()
        node = self._alternatives(depth + 1)
        if not self._match(")"):
            if self._next and self._next not in NAME:
                self._unexpected("a part or )")
            self.fail("this ( has no )", begin)
        return node

    def _repeated(self, part: GbnfNode) -> GbnfNode:
        count = 0
        while self._next and self._next in "*+?{":
            begin = self.at
            self.at += 1
            char = self.text[begin]
            low, high = self._counts(begin) if char == "{" else REPEATS[char]
            part = repeat(part, low, high)
            self._blanks()
            count += 1
            if count > 2:
                self.fail("more than 2 repetitions of one part; one is enough", begin)
        return part

    def _counts(self, begin: int) -> tuple[int, int | None]:
        self._blanks()
        low = self._span(DIGITS)
        self._blanks()
        high = low
        comma = self._match(",")
        if comma:
            self._blanks()
            high = self._span(DIGITS)
            self._blanks()
        if not self._match("}") or not (low or high):
            self.fail("a repetition is {2}, {2,}, {,3} or {2,3}", begin)
        if max(len(number.lstrip("0")) for number in (low, high)) > 4 or (
            max(int(low or 0), int(high or 0)) > MOST_REPEATS
        ):
            self.fail(f"a part may be repeated at most {MOST_REPEATS} times", begin)
        if high and int(low or 0) > int(high):
            self.fail(f"the repetition {{{low},{high}}} ends before it begins", begin)
        return int(low or 0), int(high) if high else None

    def _literal(self, begin: int) -> GbnfNode:
        found: list[str] = []
        while not self._match('"'):
            found.append(self._character(begin, "literal"))
        if len(found) == 1:
            return GbnfChars(single(ord(found[0])))
        return GbnfText("".join(found)) if found else EMPTY

    def _class(self, begin: int) -> GbnfNode:
        negated = self._match("^")
        pairs: list[tuple[int, int]] = []
        while not self._match("]"):
            here = self.at
            low = high = ord(self._character(begin, "class"))
            if self._next == "-" and not self.text.startswith("-]", self.at):
                self.at += 1
                high = ord(self._character(begin, "class"))
            if high < low:
                self.fail(f"the range {self.text[here : self.at]} ends before it begins", here)
            pairs.append((low, high + 1))
        if not pairs:
            self.fail("the class is empty; write . for any character", begin)
        members = CharSet.of(pairs)
        if negated:
            members = members.complement()
        if CharSet.of([*members.ranges(), SURROGATES]).points == SURROGATES:
            self.fail("no character is in this class", begin)
        return GbnfChars(members)

    def _character(self, begin: int, kind: str) -> str:
        here = self.at
        char = self._next
        self.at += 1
        if not char:
            self.fail(f"this {kind} has no end", begin)
        if char != "\\":
            if "\ud800" <= char <= "\udfff":
                self.fail("a lone surrogate is not a character", here)
            return char
        name = self._next
        self.at += 1
        if not name:
            self.fail(f"this {kind} has no end", begin)
        if name in ESCAPES:
            return ESCAPES[name]
        digits = self.text[self.at : self.at + HEX_ESCAPES.get(name, 0)]
        if name not in HEX_ESCAPES or len(digits) < HEX_ESCAPES[name] or not HEX.issuperset(digits):
            self.fail(f"unknown escape {self.text[here : self.at] + digits}", here)
        self.at += len(digits)
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            self.fail(f"{self.text[here : self.at]} is not a character", here)
        return chr(code)
