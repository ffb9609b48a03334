"""Prefixes: how many tokens a batch of requests has to compute at least, by counting its prefixes.

A prefix is a token with all that stands before it, which is what a slot of the KV cache holds. All
is exact except for two prefixes that have the same number of 64 bits: some 3 chances in 10^8 with a
million of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Marks: TypeAlias = NDArray[np.uint64]


@dataclass(frozen=True)
class Asked:
    """One request.

    Attributes:
        tokens: of the prompt, and generated ones whose KV was computed.
        prompt: tokens of the prompt.
        limit: the prompt's tokens from here on are computed whatever a cache holds, since what the
            model says of them is wanted; ``prompt`` where nothing is.
        space: only requests of one space share anything.
    """

    tokens: Sequence[int]
    prompt: int
    limit: int
    space: Hashable = ""


def distinct(sequences: Sequence[Sequence[int]]) -> int:
    """Tokens of the union of all sequences as a tree: each edge once."""
    return len(np.unique(_joined([marks(sequence) for sequence in sequences])))


def held(asked: Sequence[Asked]) -> int:
    """Tokens of KV that a cache without bounds has in the end."""
    return len(np.unique(_joined([marks(one.tokens, one.space) for one in asked])))


def least(asked: Sequence[Asked]) -> int:
    """Prompt tokens that have to be computed with a cache without bounds; ``asked`` in the order in
    which they were begun. That order says only which generated texts were there in time: where none
    of them is in another's prompt, the count is the same for all orders.

    Each prefix of a prompt counts as often as requests must compute it themselves (from ``limit``
    on). A prefix that no request must compute counts once; and not at all where it was generated
    by a request that was begun before all those that have it in their prompts.
    """
    own, prompts, drawn = [], [], []
    for one in asked:
        found = marks(one.tokens, one.space)
        own.append(found[one.limit : one.prompt])
        prompts.append(found[: one.prompt])
        drawn.append(found[one.prompt :])
    needed, first = _first(prompts)
    written, since = _first(drawn)
    forced = np.isin(needed, np.unique(_joined(own)))
    free = np.zeros(len(needed), bool)
    if len(written):
        place = np.searchsorted(written, needed).clip(max=len(written) - 1)
        free = (written[place] == needed) & (since[place] < first)
    return sum(map(len, own)) + int(np.count_nonzero(~forced & ~free))


def marks(tokens: Sequence[int], space: Hashable = "") -> Marks:
    """A number for each prefix, the same for equal ones: the sum of a random number for each pair
    of a token and its index (SplitMix64)."""
    ids = np.array(tokens, np.int64).astype(np.uint64)
    x = (ids << np.uint64(32)) + np.arange(len(ids), dtype=np.uint64)
    x = x * np.uint64(0x9E3779B97F4A7C15) + np.uint64(hash(space) & (2**64 - 1))
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Marks = np.cumsum(x ^ (x >> np.uint64(31)), dtype=np.uint64)
    return found


def _joined(parts: Sequence[Marks]) -> Marks:
    return np.concatenate([np.zeros(0, np.uint64), *parts])


def _first(parts: Sequence[Marks]) -> tuple[Marks, NDArray[np.int64]]:
    """All marks, sorted, and the number of the first part that has each."""
    owner = np.repeat(np.arange(len(parts)), [len(part) for part in parts])
    found, at = np.unique(_joined(parts), return_index=True)
    return found, owner[at]
