"""without_tail_recursion: rules that end with themselves, written as repetitions.

An Earley parser completes every open call of such a rule at every character: after n characters a
step costs n items at least. As a repetition the same language costs the same at every step. With
``s`` the rule, and ``A``, ``B``, ``M`` and ``E`` anything that neither begins nor ends with ``s``:

    s ::= A s | E                       A* E                 (Arden's lemma)
    s ::= s B | E                       E B*
    s ::= s M s | A s | s B | E         U (M U)*   with  U = A* E B*

Rules that end with each other are first written into one another, in the order of Gauss's
elimination, so that each ends with itself at most. Leaves are opaque: a reference whose name is no
rule is a leaf, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from sglang.srt.grammar.guidance.gbnf import (
    GbnfEither,
    GbnfNode,
    GbnfRef,
    GbnfRepeat,
    GbnfSequence,
    GbnfText,
    children,
    either,
    repeat,
    sequence,
)

MOST_ALTERNATIVES = 256  # alternatives of a rule with the groups at its ends opened
MOST_RULES = 16  # rules that end with one another
DEEPEST = 128  # parts within each other, of rules written into others
MOST_GROWTH = 8  # times the size before; what grows more stays as it was written
Parts = tuple[GbnfNode, ...]


class TooLarge(Exception):
    """The rewritten rules would be much larger than the ones given."""


def without_tail_recursion(bodies: Mapping[str, GbnfNode]) -> dict[str, GbnfNode]:
    """The bodies of rules of the same language; those without such recursion are unchanged."""
    found = dict(bodies)
    for cycle in _cycles({name: _last(body, found) for name, body in bodies.items()}):
        try:
            found.update(_eliminate({name: found[name] for name in cycle}))
        except TooLarge:
            continue
    for name, body in found.items():
        if body is bodies[name] and (_begins(body, name) or _ends(body, name)):
            try:
                found[name] = _unrolled(name, body)
            except TooLarge:
                continue
    return found


def _eliminate(bodies: dict[str, GbnfNode]) -> dict[str, GbnfNode]:
    """Rules that end with one another: each is unrolled, and then written where a later one ends
    with it. Raises TooLarge."""
    most = MOST_GROWTH * (16 + sum(map(size, bodies.values())))
    names = list(bodies)
    if len(names) > MOST_RULES:
        raise TooLarge
    for at, name in enumerate(names):
        bodies[name] = _unrolled(name, bodies[name])
        for other in names[at + 1 :]:
            bodies[other] = _with_end(bodies[other], name, bodies[name])
            if size(bodies[other]) > most or depth(bodies[other]) > DEEPEST:
                raise TooLarge
    return bodies


def _unrolled(name: str, body: GbnfNode) -> GbnfNode:
    """The body without ``name`` at its ends. Raises TooLarge."""
    before: list[GbnfNode] = []  # A
    after: list[GbnfNode] = []  # B
    between: list[Parts] = []  # M
    plain: list[GbnfNode] = []  # E
    for parts in _alternatives(body, name):
        begins = bool(parts) and _is(parts[0], name)
        ends = bool(parts) and _is(parts[-1], name)
        if len(parts) == 1 and begins:
            continue
        if begins and ends:
            between.append(parts[1:-1])
        elif ends:
            before.append(sequence(list(parts[:-1])))
        elif begins:
            after.append(sequence(list(parts[1:])))
        else:
            plain.append(sequence(list(parts)))
    if not plain or not (before or after or between):
        return body
    unit = sequence([*_any(before), either(plain), *_any(after)])
    if () in between:  # s s: three in a row are two in a row
        between = [(), *(parts for parts in between if not all(_is(p, name) for p in parts))]
    if between == [()]:
        return repeat(unit, 1, None)
    if not between:
        return unit
    links = either([sequence(list(parts)) for parts in between])
    return sequence([unit, repeat(sequence([links, unit]), 0, None)])


def _any(parts: list[GbnfNode]) -> list[GbnfNode]:
    return [repeat(either(parts), 0, None)] if parts else []


# -- ends of a body --------------------------------------------------------------------------------


def _is(node: GbnfNode, name: str) -> bool:
    return isinstance(node, GbnfRef) and node.name == name


def _optional(node: GbnfNode) -> bool:
    return isinstance(node, GbnfRepeat) and (node.low, node.high) == (0, 1)


def _ends(node: GbnfNode, name: str, at: int = -1) -> bool:
    """Whether some alternative ends with ``name``; begins with it, where ``at`` is 0."""
    if isinstance(node, GbnfEither) or _optional(node):
        return any(_ends(part, name, at) for part in children(node))
    if isinstance(node, GbnfSequence):
        return bool(node.parts) and _ends(node.parts[at], name, at)
    return _is(node, name)


def _begins(node: GbnfNode, name: str) -> bool:
    return _ends(node, name, 0)


def _last(node: GbnfNode, rules: Mapping[str, GbnfNode]) -> set[str]:
    """The rules that some alternative ends with."""
    if isinstance(node, GbnfEither) or _optional(node):
        return set().union(*(_last(part, rules) for part in children(node)))
    if isinstance(node, GbnfSequence):
        return _last(node.parts[-1], rules) if node.parts else set()
    return {node.name} if isinstance(node, GbnfRef) and node.name in rules else set()


def _alternatives(node: GbnfNode, name: str) -> list[Parts]:
    """The alternatives of a body; a group at an end of one is opened where it has ``name`` at that
    end. Raises TooLarge."""
    if isinstance(node, GbnfEither) or _optional(node):
        found: list[Parts] = [] if isinstance(node, GbnfEither) else [()]
        for part in children(node):
            found += _alternatives(part, name)
        if len(found) > MOST_ALTERNATIVES:
            raise TooLarge
        return found
    parts = node.parts if isinstance(node, GbnfSequence) else (node,)
    if parts and not _is(parts[-1], name) and _ends(parts[-1], name):
        tails = _alternatives(parts[-1], name)
        return [one for tail in tails
                for one in _alternatives(sequence([*parts[:-1], *tail]), name)]  # fmt: skip
    if parts and not _is(parts[0], name) and _begins(parts[0], name):
        heads = _alternatives(parts[0], name)
        return [one for head in heads
                for one in _alternatives(sequence([*head, *parts[1:]]), name)]  # fmt: skip
    return [parts]


def _with_end(node: GbnfNode, name: str, body: GbnfNode) -> GbnfNode:
    """The node with ``body`` wherever it ends with ``name``."""
    if _is(node, name):
        return body
    if not _ends(node, name):
        return node
    if isinstance(node, GbnfEither):
        return either([_with_end(part, name, body) for part in node.parts])
    if isinstance(node, GbnfRepeat):
        return repeat(_with_end(node.part, name, body), node.low, node.high)
    assert isinstance(node, GbnfSequence)
    return sequence([*node.parts[:-1], _with_end(node.parts[-1], name, body)])


def size(node: GbnfNode) -> int:
    """Parts of a tree."""
    return len(node.text) if isinstance(node, GbnfText) else 1 + sum(map(size, children(node)))


def depth(node: GbnfNode) -> int:
    """Levels of parts within each other."""
    return 1 + max((depth(part) for part in children(node)), default=0)


def _cycles(calls: dict[str, set[str]]) -> list[list[str]]:
    """The sets of two names or more that reach one another, in the order of ``calls`` (Tarjan,
    without recursion)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    open_: list[str] = []
    found: list[list[str]] = []
    for root in calls:
        work = [] if root in number else [(root, iter(sorted(calls[root])))]
        while work:
            name, rest = work[-1]
            if name not in number:
                number[name] = low[name] = len(number)
                open_.append(name)
            below = next(rest, None)
            if below is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == number[name]:
                    at = open_.index(name)
                    members, open_ = set(open_[at:]), open_[:at]
                    if len(members) > 1:
                        found.append([one for one in calls if one in members])
            elif below not in number:
                work.append((below, iter(sorted(calls[below]))))
            elif below in open_:
                low[name] = min(low[name], number[below])
    return found
