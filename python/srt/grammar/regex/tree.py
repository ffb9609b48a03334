"""The syntax tree of a pattern."""

from __future__ import annotations

from dataclasses import dataclass

from sglang.srt.grammar.regex.charset import CharSet


@dataclass(frozen=True, eq=False)
class Chars:
    """One character of a set."""

    members: CharSet


@dataclass(frozen=True, eq=False)
class Concat:
    """One part after the other; none at all is the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Either:
    """Any one of the parts."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    """``part`` repeated ``low`` to ``high`` times; None: without limit."""

    part: Node
    low: int
    high: int | None


@dataclass(frozen=True, eq=False)
class Assert:
    """A condition on the two characters around a position.

    ``kind``: "start" and "end" of the text, "line start" and "line end" with MULTILINE, "tail" is
    ``$`` without it (the end, or before a last newline), "edge" and "no edge" of a word.
    """

    kind: str
    ascii: bool = False


@dataclass(frozen=True, eq=False)
class Look:
    """Look-around: the text ahead, or ``behind``, matches ``part``; ``negative``: does not."""

    part: Node
    behind: bool
    negative: bool


Node = Chars | Concat | Either | Repeat | Assert | Look
EMPTY = Concat(())


def concat(parts: list[Node]) -> Node:
    """Return a node for the parts in order; for a single part, the part itself."""
    return parts[0] if len(parts) == 1 else Concat(tuple(parts))


def either(parts: list[Node]) -> Node:
    """Return a node for any of the parts, with single characters merged to one set."""
    if len(parts) == 1:
        return parts[0]
    sets = [part.members for part in parts if isinstance(part, Chars)]
    if len(sets) > 1:
        rest: list[Node] = [part for part in parts if not isinstance(part, Chars)]
        parts = [Chars(CharSet.union(sets)), *rest]
    return parts[0] if len(parts) == 1 else Either(tuple(parts))


def width(node: Node) -> tuple[int, int | None]:
    """Return the least and the largest number of characters of a match; None: without limit."""
    if isinstance(node, Chars):
        return 1, 1
    if isinstance(node, Concat):
        low, high = 0, 0
        for part in node.parts:
            least, most = width(part)
            low += least
            high = None if high is None or most is None else high + most  # type: ignore[assignment]
        return low, high
    if isinstance(node, Either):
        widths = [width(part) for part in node.parts]
        tops = [most for _, most in widths]
        top = None if None in tops else max(most for most in tops if most is not None)
        return min(least for least, _ in widths), top
    if isinstance(node, Repeat):
        least, most = width(node.part)
        if most == 0 or node.high == 0:
            return 0, 0
        if most is None or node.high is None:
            return least * node.low, None
        return least * node.low, most * node.high
    return 0, 0
