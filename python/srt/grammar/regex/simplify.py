"""Rewrites of a tree that keep its language and make its automaton smaller.

Assertions that always hold where they stand, like ``^`` at the start of what must match from the
start, go away: most patterns then need no context at all.
"""

from __future__ import annotations

import operator

from sglang.srt.grammar.regex.tree import (
    EMPTY,
    Assert,
    Chars,
    Concat,
    Either,
    Look,
    Node,
    Repeat,
    concat,
    either,
    width,
)

STARTS = ("start", "line start")
ENDS = ("end", "line end", "tail")


def simplify(node: Node) -> Node:
    """The same language; flat, and without repetitions of repetitions where they add up."""
    if isinstance(node, Concat):
        parts: list[Node] = []
        for part in node.parts:
            if isinstance(part, Chars):  # most are, and in long words
                parts.append(part)
                continue
            part = simplify(part)
            parts += part.parts if isinstance(part, Concat) else [part]
        return concat(parts) if parts else EMPTY
    if isinstance(node, Either):
        return _either([simplify(part) for part in node.parts])
    if isinstance(node, Repeat):
        return _repeat(simplify(node.part), node.low, node.high)
    if isinstance(node, Look):
        return Look(simplify(node.part), node.behind, node.negative)
    return node


def _either(parts: list[Node]) -> Node:
    flat: list[Node] = []
    for part in parts:
        flat += part.parts if isinstance(part, Either) else [part]
    some = [part for part in flat if not _empty(part)]
    if len(some) == len(flat):
        return either(some)
    return _repeat(either(some), 0, 1) if some else EMPTY


def _empty(node: Node) -> bool:
    return isinstance(node, Concat) and not node.parts


def _repeat(part: Node, low: int, high: int | None) -> Node:
    if high == 0 or _empty(part):
        return EMPTY
    if low == high == 1:
        return part
    if width(part)[1] == 0:  # holds as often as wanted, or need not hold
        return part if low else EMPTY
    if isinstance(part, Repeat) and _adds_up(part, low):
        top = None if high is None or part.high is None else high * part.high
        return Repeat(part.part, low * part.low, top)
    return Repeat(part, low, high)


def _adds_up(inner: Repeat, low: int) -> bool:
    """Whether ``low`` or more times a..b of something is every number from ``low * a`` on: k times
    a..b is ka..kb, and it must reach (k + 1)a - 1."""
    if low == 0:
        return inner.low <= 1
    return inner.high is None or low * inner.high >= (low + 1) * inner.low - 1


def trim(node: Node, kinds: tuple[str, ...], last: bool) -> Node:
    """The tree without assertions of ``kinds`` at its beginning (``last``: at its end)."""
    if isinstance(node, Assert):
        return EMPTY if node.kind in kinds else node
    if isinstance(node, Either):
        parts = [trim(part, kinds, last) for part in node.parts]
        return node if all(map(operator.is_, parts, node.parts)) else _either(parts)
    if not isinstance(node, Concat):
        return node
    parts = list(node.parts)
    for at in reversed(range(len(parts))) if last else range(len(parts)):
        parts[at] = trim(parts[at], kinds, last)
        if not (_empty(parts[at]) or isinstance(parts[at], Assert | Look)):
            break
    same = all(map(operator.is_, parts, node.parts))
    return node if same else simplify(Concat(tuple(parts)))


def plain(node: Node) -> bool:
    """Whether the tree has neither assertions nor look-arounds."""
    if isinstance(node, Concat | Either):
        return all(map(plain, node.parts))
    if isinstance(node, Repeat):
        return plain(node.part)
    return isinstance(node, Chars)
