"""Tree: the prompts of a plan as a prefix tree, as plain data and as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sglang.forecast.cache_model import Cache, CacheNode, Units
from sglang.forecast.prompt_reader import PromptReader
from sglang.forecast.token_units import UnitTokens

UNITS = 24  # leading units of an edge that are decoded to text
CHARACTERS = 48  # printed characters of an edge's text
WIDE, DEEP = 4, 8  # printed branches per node, and printed levels
ROOT = -1  # index of the parent of the first branches


class Branch(NamedTuple):
    """An edge: the beginning of its text, its tokens, and the number of prompts with it."""

    text: str
    tokens: int
    requests: int
    children: tuple[Branch, ...]


def tree_of(cache: Cache, reader: PromptReader, tokens: UnitTokens) -> tuple[Branch, ...]:
    """Return the edges that prompts contain. Successive edges of the same prompts are merged."""
    cuts = _cuts(cache)
    stretches = [reader.text(cut.edge) for cut in cuts]
    rows = [part for parts in stretches for part in parts if not isinstance(part, str)]
    texts = iter(tokens.decode(rows))
    said = ["".join(p if isinstance(p, str) else next(texts) for p in ps) for ps in stretches]
    below: list[list[Branch]] = [[] for _ in range(len(cuts) + 1)]  # by index, ROOT last
    for place, cut in reversed(list(enumerate(cuts))):
        text = said[place].rstrip("\ufffd")
        branch = Branch(text, cut.tokens, cut.requests, tuple(below[place]))
        below[cut.above].append(branch)
    return tuple(below[ROOT])


class _Cut(NamedTuple):
    """A branch before decoding: its first units in ``edge``; ``above``: index of its parent."""

    above: int
    edge: Units
    tokens: int
    requests: int


def _read(node: CacheNode) -> list[CacheNode]:
    return [child for child in node.children.values() if child.requests]


def _cuts(cache: Cache) -> list[_Cut]:
    """Return all branches, parents before children, later siblings first. Not recursive, because
    a conversation adds a level with each turn."""
    found: list[_Cut] = []
    todo = [(ROOT, node) for root in cache.roots.values() for node in _read(root)]
    while todo:
        above, node = todo.pop()
        edge, length = node.edge[:UNITS], len(node.edge)
        children = _read(node)
        while len(children) == 1 and children[0].requests == node.requests:
            (node,) = children
            length += len(node.edge)
            if len(edge) < UNITS:
                edge += node.edge[: UNITS - len(edge)]
            children = _read(node)
        todo += [(len(found), child) for child in children]
        found.append(_Cut(above, edge, length, node.requests))
    return found


# Printing


def tree_lines(branches: Sequence[Branch], depth: int) -> Iterator[str]:
    """Yield lines for the branches with the most tokens times prompts; one for all others."""
    first = sorted(branches, key=lambda one: -one.tokens * one.requests)
    kept = {id(one) for one in first[: WIDE if depth < DEEP else 0]}
    rest = [one for one in branches if id(one) not in kept]
    indent = "  " * (depth + 1)
    for branch in branches:
        if id(branch) not in kept:
            continue
        text = json.dumps(_brief(branch.text), ensure_ascii=False)
        yield f"{branch.requests:>8,}  {branch.tokens:>7,}{indent}{text}"
        yield from tree_lines(branch.children, depth + 1)
    if rest:
        requests = sum(one.requests for one in rest)
        yield f"{requests:>8,}  {_total(rest):>7,}{indent}in {len(rest):,} more"


def _brief(text: str) -> str:
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 3] + "..."


def _total(branches: Iterable[Branch]) -> int:
    """Return the tokens of the branches and of all branches below them."""
    total, todo = 0, list(branches)
    while todo:
        branch = todo.pop()
        total += branch.tokens
        todo += branch.children
    return total
