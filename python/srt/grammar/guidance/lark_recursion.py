"""lark_without_tail_recursion: a user's Lark with the recursion at the ends of rules as repetition.

Only rules in Lark's plain notation are read: names, strings, patterns, ranges, groups, ``|`` and
repetitions. A rule with anything else (attributes, parameters, aliases, nested grammars) stays as
it was written, and to the others it is a leaf. Terminals are never touched, so the lexer sees the
same ones, in the same order.
"""

from __future__ import annotations

import re

from sglang.srt.grammar.guidance.gbnf import (
    EMPTY,
    REPEATS,
    GbnfEither,
    GbnfNode,
    GbnfRef,
    GbnfRepeat,
    GbnfSequence,
    either,
    repeat,
    sequence,
)
from sglang.srt.grammar.guidance.tail_recursion import depth, without_tail_recursion

DEEPEST = 12  # groups within each other; a rule with more stays as it was written
_STRING = r'"(?:[^"\\\n]|\\.)*"i?'
_SKIPPED = re.compile(rf"{_STRING}|/(?![/*])(?:[^/\\\n]|\\.)+/[a-z]*|(?P<comment>//[^\n]*|#[^\n]*)")
# A rule in plain notation, or the begin of another definition or of a directive.
_HEAD = re.compile(
    r"(?m)^[ \t]*(?:[?!]*(?P<name>[a-z_][a-z0-9_]*)[ \t]*:(?!:)"
    r"|%|[?!]*\w+(?:\[[^\]\n]*\]|\{[^}\n]*\}|::\w+|\.-?\d+)*[ \t]*:(?!:))"
)
_PART = re.compile(
    rf"(?P<leaf>{_STRING}\s*\.\.\s*{_STRING}|{_STRING}|/(?:[^/\\\n]|\\.)+/[a-z]*"
    r"|<[^<>\s]+>|[A-Za-z_]\w*(?![\w:]|\s*::|\{\s*[^\s\d]))"
    r"|(?P<mark>[*+?])|(?P<counts>\{\s*\d+\s*(?:,\s*\d*\s*)?\})|(?P<sign>[()|\[\]])|(?P<blank>\s+)"
)


class NotPlain(Exception):
    """The rule is not in plain notation."""


def lark_without_tail_recursion(text: str) -> str:
    """Lark of the same language. It never fails: what it cannot read stays as it was written."""
    given, text = text, _SKIPPED.sub(lambda found: "" if found["comment"] else found[0], text)
    bodies: dict[str, GbnfNode] = {}
    spans: dict[str, tuple[int, int]] = {}
    heads = list(_HEAD.finditer(text))
    repeated: set[str] = set()
    for at, head in enumerate(heads):
        name = head["name"]
        if not name:
            continue
        end = heads[at + 1].start() if at + 1 < len(heads) else len(text)
        repeated |= {name} & spans.keys()
        spans[name] = head.end(), end
        try:
            bodies[name] = _Body(text[head.end() : end]).whole()
        except NotPlain:
            continue
    for name in repeated:
        bodies.pop(name, None)
    changed = without_tail_recursion(bodies)
    better = [name for name, body in bodies.items()
              if changed[name] is not body and depth(changed[name]) <= 2 * DEEPEST]  # fmt: skip
    for name in sorted(better, key=lambda name: -spans[name][0]):
        begin, end = spans[name]
        text = f"{text[:begin]} {_write(changed[name])}\n{text[end:]}"
    return text if better else given


class _Body:
    """The parser of one rule's body. A leaf is a ``GbnfRef`` by its own text."""

    def __init__(self, text: str) -> None:
        self.parts: list[re.Match[str]] = []
        at = 0
        while at < len(text):
            found = _PART.match(text, at)
            if found is None:
                raise NotPlain
            at = found.end()
            if not found["blank"]:
                self.parts.append(found)
        self.at = 0

    def whole(self) -> GbnfNode:
        node = self._alternatives(0)
        if self.at < len(self.parts):
            raise NotPlain
        return node

    def _take(self, signs: str) -> str:
        """The next part if it is one of ``signs``, else ""."""
        sign = self.parts[self.at]["sign"] if self.at < len(self.parts) else None
        if not sign or sign not in signs:
            return ""
        self.at += 1
        return sign

    def _alternatives(self, depth: int) -> GbnfNode:
        if depth > DEEPEST:
            raise NotPlain
        parts = [self._sequence(depth)]
        while self._take("|"):
            parts.append(self._sequence(depth))
        return either(parts)

    def _sequence(self, depth: int) -> GbnfNode:
        parts: list[GbnfNode] = []
        while self.at < len(self.parts):
            if opened := self._take("(["):
                node = self._alternatives(depth + 1)
                if self._take(")]") != {"(": ")", "[": "]"}[opened]:
                    raise NotPlain
                parts.append(node if opened == "(" else repeat(node, 0, 1))
            elif leaf := self.parts[self.at]["leaf"]:
                parts.append(EMPTY if leaf == '""' else GbnfRef(leaf, self.at))
                self.at += 1
            elif self.parts[self.at]["sign"]:
                break
            elif not parts:
                raise NotPlain
            else:
                parts[-1] = repeat(parts[-1], *self._counts(self.parts[self.at]))
                self.at += 1
        return sequence(parts)

    def _counts(self, part: re.Match[str]) -> tuple[int, int | None]:
        if part["mark"]:
            return REPEATS[part["mark"]]
        low, comma, high = part["counts"][1:-1].partition(",")
        if not comma:
            return int(low), int(low)
        return int(low), int(high) if high.strip() else None


def _write(node: GbnfNode) -> str:
    if isinstance(node, GbnfRef):
        return node.name
    if isinstance(node, GbnfRepeat):
        high = "" if node.high is None else node.high
        marks = {counts: mark for mark, counts in REPEATS.items()}
        return f"({_write(node.part)})" + marks.get((node.low, node.high), f"{{{node.low},{high}}}")
    if isinstance(node, GbnfEither):
        return " | ".join(map(_write, node.parts))
    assert isinstance(node, GbnfSequence)
    return " ".join(
        f"({_write(part)})" if isinstance(part, GbnfEither) else _write(part) for part in node.parts
    ) or '""'  # fmt: skip
