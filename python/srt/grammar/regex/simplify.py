"""Rewrites of a tree that keep its language and make its automaton smaller.

Assertions that always hold at their position, such as ``^`` at the start of a pattern, are removed.
Most patterns then have no assertions.
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
    """Return a flat tree of the same language, with nested repetitions merged if possible."""
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
    if width(part)[1] == 0:  # an assertion: repeated, it holds as once; with low 0, it is optional
        return part if low else EMPTY
    if isinstance(part, Repeat) and _adds_up(part, low):
        top = None if high is None or part.high is None else high * part.high
        return Repeat(part.part, low * part.low, top)
    return Repeat(part, low, high)


def _adds_up(inner: Repeat, low: int) -> bool:
    """Return True if ``low`` or more repeats of a..b repeats give every number from ``low * a`` on:
    k repeats give ka..kb, which must reach (k + 1)a - 1."""
    if low == 0:
        return inner.low <= 1
    return inner.high is None or low * inner.high >= (low + 1) * inner.low - 1


def trim(node: Node, kinds: tuple[str, ...], last: bool) -> Node:
    """Return the tree without assertions of ``kinds`` at its beginning (``last``: at its end)."""
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
    """Return True if the tree has neither assertions nor look-arounds."""
    if isinstance(node, Concat | Either):
        return all(map(plain, node.parts))
    if isinstance(node, Repeat):
        return plain(node.part)
    return isinstance(node, Chars)
