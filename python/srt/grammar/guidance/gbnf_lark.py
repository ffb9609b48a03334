"""gbnf_to_lark: GBNF as Lark for llguidance, read character by character.

llguidance's lexer takes the longest match of a terminal, which GBNF knows nothing of. A grammar
without recursion is one terminal, which has no other beside it; one with recursion has terminals of
one character, and of several only where the longest match is the only one.
"""

from __future__ import annotations

from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.guidance.gbnf import (
    SURROGATES,
    GbnfChars,
    GbnfEither,
    GbnfNode,
    GbnfRef,
    GbnfRepeat,
    GbnfRun,
    GbnfSequence,
    GbnfText,
    Rule,
    children,
    either,
    parse,
    reachable,
    refs,
    repeat,
    sequence,
)
from sglang.srt.grammar.guidance.gbnf_lexemes import wholes
from sglang.srt.grammar.guidance.tail_recursion import without_tail_recursion
from sglang.srt.grammar.guidance.trial_text import probe
from sglang.srt.grammar.guidance.work_limits import check
from sglang.srt.grammar.regex.charset import EVERYTHING, CharSet

LEVELS = 16  # nested parts of a rule
SMALL = 16  # parts of a rule that is written where it is used
LARGEST_TERMINAL = 260_000  # parts, with what they refer to
LARGEST = 30_000  # parts of a grammar with rules; llguidance numbers them in 16 bits


def gbnf_to_lark(text: str) -> str:
    """Translate GBNF into Lark. Raises GrammarError, with the line and column of the text."""
    rules = simplified(parse(text))
    order = _bottom_up(rules)
    if order is not None and _size(rules, order) <= LARGEST_TERMINAL:
        terminal = _terminal(rules, order)
        if _stands(terminal):
            return terminal
    size = sum(_parts(rule.body, dict.fromkeys(rules, 1)) for rule in rules.values())
    if size > LARGEST:
        raise GrammarError(f"ebnf has {size} parts, at most {LARGEST} are possible; shorten it.")
    return _Rules(rules).text()


def simplified(rules: dict[str, Rule]) -> dict[str, Rule]:
    """Rules of the same language without recursion at their ends, where that can be."""
    bodies = without_tail_recursion({name: rule.body for name, rule in rules.items()})
    return reachable({name: Rule(bodies[name], rule.at) for name, rule in rules.items()})


def _stands(text: str) -> bool:
    """llguidance breaks on some terminals, such as ``"ab"{2} | "abab"`` in another spelling."""
    try:
        check(text)
        probe(text)
    except GrammarError:
        return False
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return False
    return True


def _bottom_up(rules: dict[str, Rule]) -> list[str] | None:
    """The rules, each behind those it refers to; None where there is recursion."""
    order: dict[str, None] = {}
    open_: dict[str, list[str]] = {"root": _names(rules["root"])}
    while open_:
        name, names = next(reversed(open_.items()))
        if names:
            below = names.pop()
            if below in open_:
                return None
            if below not in order:
                open_[below] = _names(rules[below])
        else:
            order[name] = None
            del open_[name]
    return list(order)


def _names(rule: Rule) -> list[str]:
    return [ref.name for ref in refs(rule.body)]


def _size(rules: dict[str, Rule], order: list[str]) -> int:
    sizes: dict[str, int] = {}
    for name in order:
        sizes[name] = _parts(rules[name].body, sizes)
    return sizes["root"]


def _parts(node: GbnfNode, sizes: dict[str, int]) -> int:
    if isinstance(node, GbnfRef):
        return sizes[node.name]
    if isinstance(node, GbnfText):
        return len(node.text)
    return 1 + sum(_parts(child, sizes) for child in children(node))


# -- one terminal ----------------------------------------------------------------------------------


class _LarkWriter:
    """Rules, or terminals, of Lark.

    Attributes:
        names: of the grammar's rules.
        lines: those written.
    """

    kind = ""

    def __init__(self, names: list[str]) -> None:
        self.names = {name: f"{self.kind}{number}" for number, name in enumerate(names)}
        self.lines: list[str] = []
        self._more = len(names)

    def rule(self, name: str, body: GbnfNode) -> None:
        self.lines.append(f"{self.names[name]}: {self._write(body, 1)}")

    def _write(self, node: GbnfNode, level: int) -> str:
        """Text of a node. Deep nodes become rules: llguidance bounds nested parentheses."""
        inner = children(node)
        if not inner:
            return self.leaf(node)
        if level % LEVELS == 0:
            name = f"{self.kind}{self._more}"
            self._more += 1
            self.lines.append(f"{name}: {self._write(node, 1)}")
            return name
        return _join(node, [self._write(child, level + 1) for child in inner])

    def leaf(self, node: GbnfNode) -> str:
        raise NotImplementedError


def _terminal(rules: dict[str, Rule], order: list[str]) -> str:
    patterns: dict[str, str] = {}
    for name in order:
        patterns[name] = _pattern(rules[name].body, patterns)
    return f"start: T0\nT0: /{patterns['root']}/"


def _pattern(node: GbnfNode, known: dict[str, str]) -> str:
    """A regular expression, which may stand beside others."""
    if isinstance(node, GbnfRef):
        return known[node.name]
    if isinstance(node, GbnfChars):
        return _set(node.members)
    if isinstance(node, GbnfText):
        return _literal(node.text)
    parts = [_pattern(child, known) for child in children(node)]
    if isinstance(node, GbnfRepeat):
        return f"(?:{parts[0]}){_counts(node.low, node.high)}"
    if isinstance(node, GbnfEither):
        return f"(?:{'|'.join(dict.fromkeys(parts))})"
    return "".join(parts)


def _join(node: GbnfNode, parts: list[str]) -> str:
    if isinstance(node, GbnfRepeat):
        plain = isinstance(node.part, GbnfChars | GbnfRef)
        return (parts[0] if plain else f"({parts[0]})") + _counts(node.low, node.high)
    if isinstance(node, GbnfEither):
        return " | ".join(parts)
    within = zip(node.parts, parts) if isinstance(node, GbnfSequence) else ()
    return (
        " ".join(f"({text})" if isinstance(part, GbnfEither) else text for part, text in within)
        or '""'
    )


def _counts(low: int, high: int | None) -> str:
    if high is None and low < 2:
        return "+" if low else "*"
    if (low, high) == (0, 1):
        return "?"
    return f"{{{low},{'' if high is None else high}}}"


def _set(members: CharSet) -> str:
    """A class of a regular expression, surrogates left out."""
    if members == EVERYTHING:
        return r"(?s:.)"
    pairs: list[tuple[int, int]] = []
    for low, end in members.ranges():
        if low < SURROGATES[0]:
            pairs.append((low, min(end, SURROGATES[0])))
        if end > SURROGATES[1]:
            pairs.append((max(low, SURROGATES[1]), end))
    return "[" + "".join(
        _point(low) if end == low + 1 else f"{_point(low)}-{_point(end - 1)}" for low, end in pairs
    ) + "]"  # fmt: skip


def _literal(text: str) -> str:
    return "".join(_point(ord(char)) for char in text)


def _point(code: int) -> str:
    char = chr(code)
    return char if char.isascii() and char.isalnum() else f"\\x{{{code:x}}}"


# -- rules -----------------------------------------------------------------------------------------


class _Rules(_LarkWriter):
    """Parser rules, with what may be a terminal made one."""

    kind = "r"

    def __init__(self, rules: dict[str, Rule]) -> None:
        self._inlined = {
            name: rule.body for name, rule in rules.items()
            if name != "root" and not _names(rule) and _parts(rule.body, {}) <= SMALL
        }  # fmt: skip
        kept = [name for name in rules if name not in self._inlined]
        super().__init__(kept)
        self._bodies = {name: self._lower(rules[name].body) for name in kept}
        self._wholes = wholes(self._bodies, "root")
        self._terminals: dict[str, str] = {}

    def text(self) -> str:
        for name, body in self._bodies.items():
            self.rule(name, body)
        terminals = [f"{name}: /{pattern}/" for pattern, name in self._terminals.items()]
        return "\n".join([f"start: {self.names['root']}", *self.lines, *terminals])

    def _lower(self, node: GbnfNode) -> GbnfNode:
        """A copy for each use, with the runs of one set named."""
        if isinstance(node, GbnfRef):
            body = self._inlined.get(node.name)
            return node if body is None else self._lower(body)
        if isinstance(node, GbnfChars):
            return GbnfChars(node.members)
        if isinstance(node, GbnfText):
            return GbnfText(node.text)
        if isinstance(node, GbnfSequence):
            return sequence(list(map(self._lower, node.parts)))
        if isinstance(node, GbnfEither):
            return either(list(map(self._lower, node.parts)))
        if isinstance(node, GbnfRepeat):
            return self._loop(repeat(self._lower(node.part), node.low, node.high))
        return node

    def _loop(self, node: GbnfNode) -> GbnfNode:
        if not isinstance(node, GbnfRepeat):
            return node
        low, high = node.low, node.high
        if isinstance(node.part, GbnfChars):
            run = GbnfRun(node.part.members, max(low, 1), high, False)
            return run if low else GbnfRepeat(run, 0, 1)
        if isinstance(node.part, GbnfEither) and high is None and low < 2:
            parts = [
                GbnfRun(part.members, 1, None, True) if isinstance(part, GbnfChars) else part
                for part in node.part.parts
            ]
            return GbnfRepeat(GbnfEither(tuple(parts)), low, high)
        return node

    def leaf(self, node: GbnfNode) -> str:
        if isinstance(node, GbnfRef):
            return self.names[node.name]
        if isinstance(node, GbnfChars):
            return self._name(_set(node.members))
        if isinstance(node, GbnfText):
            if id(node) in self._wholes:
                return self._name(_literal(node.text))
            return " ".join(self._name(_literal(char)) for char in node.text)
        if isinstance(node, GbnfRun):
            one, counts = _set(node.members), _counts(node.low, node.high)
            if id(node) in self._wholes:
                return self._name(one + counts)
            return self._name(one) + ("" if node.looped else counts)
        return '""'

    def _name(self, pattern: str) -> str:
        return self._terminals.setdefault(pattern, f"T{len(self._terminals)}")
