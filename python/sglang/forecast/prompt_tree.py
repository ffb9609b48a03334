"""Tree: the prompts of a plan by what they begin with, as plain data and as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sglang.forecast.cache_model import Cache, CacheNode, Units
from sglang.forecast.prompt_reader import PromptReader
from sglang.forecast.token_units import UnitTokens

UNITS = 24  # units of an edge whose text is kept
CHARACTERS = 48  # printed characters of its text
WIDE, DEEP = 4, 8  # branches of a node that are printed, and levels
ROOT = -1  # index of the parent of the first branches


class Branch(NamedTuple):
    """An edge: how its text begins, how many tokens it has, how many prompts it is part of."""

    text: str
    tokens: int
    requests: int
    children: tuple[Branch, ...]


def tree_of(cache: Cache, reader: PromptReader, tokens: UnitTokens) -> tuple[Branch, ...]:
    """The edges that are part of prompts, those of one path and the same prompts as one."""
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
    """A branch of which the first units are known; ``above`` is the index of its parent."""

    above: int
    edge: Units
    tokens: int
    requests: int


def _read(node: CacheNode) -> list[CacheNode]:
    return [child for child in node.children.values() if child.requests]


def _cuts(cache: Cache) -> list[_Cut]:
    """Each before what hangs on it, the last of those side by side first. No recursion: a
    conversation is a level deeper with each turn."""
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
    """Yield the branches with the most tokens to compute, the others as one line."""
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
    """Tokens of these and of all below."""
    total, todo = 0, list(branches)
    while todo:
        branch = todo.pop()
        total += branch.tokens
        todo += branch.children
    return total
