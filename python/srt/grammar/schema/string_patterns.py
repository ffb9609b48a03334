"""Patterns of a schema, as terminals that match the quoted strings in which they are found.

A pattern is enforced as both its readings, that of Python's ``re`` and that of ECMA-262, where
``\\d``, ``\\w`` and ``\\s`` are ASCII: what is written satisfies a validator of either kind.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from sglang.srt.grammar.character_dfa import CharacterDfa
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.regex import BeyondBudget, Budget, compile_regex
from sglang.srt.grammar.regex.parser import parse
from sglang.srt.grammar.regex.tree import Assert, Chars, Concat, Either, Look, Node, Repeat
from sglang.srt.grammar.schema.quoted import CHAR, any_of, common, literals
from sglang.srt.grammar.schema.state_elimination import from_automaton
from sglang.srt.grammar.schema.unmatched_terminal import unmatched

BUDGET = Budget(pattern=16 << 10)
BRANCHES = 64
LONGEST = 256 << 10  # bytes of one terminal
STARTS = frozenset({"start"})
ENDS = frozenset({"end", "tail"})
FLAGS = re.compile(r"\(\?[aimsux]+\)")
ANYTHING = r"[\s\S]*"
BEFORE = (f"{ANYTHING}(?:", f"{ANYTHING}(?a:")


@dataclass(frozen=True)
class Pattern:
    """A condition on a string.

    Attributes:
        expression: terminal of Lark for the quoted strings that satisfy it.
        source: what ``re`` searches in the string itself; "" where ``words`` are meant.
        words: the strings that satisfy it.
    """

    expression: str
    source: str = ""
    words: frozenset[str] = field(default=frozenset())

    def fits(self, text: str) -> bool:
        if not self.source:
            return text in self.words
        return _automaton(self.source).accepts(text)


@lru_cache(maxsize=256)
def _automaton(source: str) -> CharacterDfa:
    """Automaton of the texts in which ``re`` finds the pattern. ``re`` itself may take for ever."""
    try:
        return compile_regex(wrapped(source, BEFORE[0], rf"){ANYTHING}"), BUDGET)
    except BeyondBudget as error:
        raise GrammarError(f"{source!r} beside names or values: {error}") from None


def wrapped(source: str, before: str, after: str) -> str:
    """The pattern between two texts; flags at its start stay at the start."""
    flags = FLAGS.match(source)
    if flags is None:
        return f"{before}{source}{after}"
    end = "\n" if "x" in flags[0] else ""  # after a comment
    return f"{flags[0]}{before}{source[flags.end() :]}{end}{after}"


def whole_end(source: str) -> str:
    """The pattern with ``$`` as in ECMA-262: never before a final line feed."""
    if (flags := FLAGS.match(source)) is not None and "m" in flags[0]:
        return source
    parts = re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", source, re.DOTALL)
    return "".join(r"\Z" if part == "$" else part for part in parts)


def one_of(words: frozenset[str]) -> Pattern:
    return Pattern(literals(sorted(words)), words=words)


@lru_cache(maxsize=1024)
def pattern_of(source: str) -> Pattern:
    """Return the keyword ``pattern`` as a terminal of a grammar. Raises GrammarError where ``re``
    does not compile it, or a feature is not supported."""
    wide = parse(source, BUDGET)
    try:
        narrow = parse(wrapped(source, "(?a:", ")"), BUDGET)
        node = _both(wide, narrow)
        body = "|".join(_branch(parts) for parts in _branches([node]))
        expression = f'/"(?:{body})"/'
    except BeyondBudget:
        ends = whole_end(source)
        texts = (wrapped(ends, before, rf"){ANYTHING}") for before in BEFORE)
        expression = f"({' & '.join(map(from_automaton, texts))})"
    if len(expression) > LONGEST:
        raise GrammarError(f"the pattern takes more than {LONGEST} bytes to write out; shorten it")
    if unmatched(expression):
        raise GrammarError("no text satisfies the pattern; correct it")
    return Pattern(expression, source or "(?:)")


def _both(wide: Node, narrow: Node) -> Node:
    """The intersection of two trees of the same form, with sets of their own."""
    wide, narrow = _bare(wide), _bare(narrow)
    if isinstance(wide, Chars) and isinstance(narrow, Chars):
        return Chars(common(wide.members, narrow.members))
    if isinstance(wide, Concat) and isinstance(narrow, Concat):
        return Concat(tuple(map(_both, wide.parts, narrow.parts)))
    if isinstance(wide, Either) and isinstance(narrow, Either):
        return Either(tuple(map(_both, wide.parts, narrow.parts)))
    if isinstance(wide, Repeat) and isinstance(narrow, Repeat):
        return Repeat(_both(wide.part, narrow.part), wide.low, wide.high)
    if isinstance(wide, Assert) and wide.kind in STARTS | ENDS:
        return wide
    raise BeyondBudget("the pattern has an assertion in the middle")


def _bare(node: Node) -> Node:
    """The node without groups around a single part."""
    while isinstance(node, Concat | Either) and len(node.parts) == 1:
        node = node.parts[0]
    return node


def _branches(parts: list[Node]) -> Iterator[list[Node]]:
    """The sequences that a sequence stands for, where an alternative with an anchor in it comes
    first or last."""
    waiting, made = [parts], 0
    while waiting:
        parts = waiting.pop()
        flat: list[Node] = []
        for part in parts:
            flat += part.parts if isinstance(part, Concat) else [part]
        if any(isinstance(part, Concat) for part in flat):
            waiting.append(flat)
            continue
        at = next((i for i in (0, len(flat) - 1) if flat and _splits(flat[i])), None)
        if at is None:
            yield flat
        else:
            chosen = flat[at]
            assert isinstance(chosen, Either)
            waiting += [[*flat[:at], part, *flat[at + 1 :]] for part in reversed(chosen.parts)]
        made += 1
        if made > BRANCHES:
            raise BeyondBudget("the pattern has too many alternatives with anchors")


def _splits(node: Node) -> bool:
    return isinstance(node, Either) and _anchored(node)


def _anchored(node: Node) -> bool:
    if isinstance(node, Assert | Look):
        return True
    if isinstance(node, Repeat):
        return _anchored(node.part)
    return isinstance(node, Concat | Either) and any(map(_anchored, node.parts))


def _branch(parts: list[Node]) -> str:
    begin = end = f"{CHAR}*"
    while parts and isinstance(parts[0], Assert) and parts[0].kind in STARTS:
        begin, parts = "", parts[1:]
    while parts and isinstance(parts[-1], Assert) and parts[-1].kind in ENDS:
        end, parts = "", parts[:-1]
    if begin:
        parts = _least(parts, last=False)
    if end:
        parts = _least(parts, last=True)
    return begin + "".join(map(_text, parts)) + end


def _least(parts: list[Node], last: bool) -> list[Node]:
    """The same where any text may stand before the first part, or after the ``last``: a repetition
    there is found where its least number is, so that counting further tells nothing apart."""
    parts = list(parts)
    while parts:
        edge = len(parts) - 1 if last else 0
        part = parts[edge]
        if isinstance(part, Concat):
            parts[edge : edge + 1] = part.parts
        elif isinstance(part, Repeat) and part.low == 0:
            del parts[edge]
        elif isinstance(part, Repeat) and part.low == 1:
            parts[edge] = part.part
        elif isinstance(part, Either):
            options = [_least([option], last) for option in part.parts]
            if all(options):
                parts[edge] = Either(tuple(Concat(tuple(option)) for option in options))
                break
            del parts[edge]  # one of them is found everywhere
        else:
            if isinstance(part, Repeat):
                parts[edge] = Repeat(part.part, part.low, part.low)
            break
    return parts


def _text(node: Node) -> str:
    if isinstance(node, Chars):
        return any_of(node.members)
    if isinstance(node, Concat):
        return "".join(map(_text, node.parts))
    if isinstance(node, Either):
        return f"(?:{'|'.join(map(_text, node.parts))})"
    if isinstance(node, Repeat):
        high = "" if node.high is None else node.high
        return f"(?:{_text(node.part)}){{{node.low},{high}}}"
    raise BeyondBudget("the pattern has an assertion in the middle")
