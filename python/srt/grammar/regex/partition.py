"""Partition: the coarsest classes of characters that a list of sets does not split."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sglang.srt.grammar.character_dfa import DEAD, Int32Array
from sglang.srt.grammar.regex.charset import LIMIT, CharSet

SURROGATES = (0xD800, 0xE000)  # range of code points that no valid text contains
KEY_BITS = 60


@dataclass(frozen=True, eq=False)
class Partition:
    """Classes of all characters. A set of the pattern contains all characters of a class or none.

    Attributes:
        edges: first code point of each interval, ascending, from 0 [intervals].
        labels: class of each interval, DEAD if no set contains the interval [intervals].
        members: classes in each set, ascending [sets].
        count: number of classes.
    """

    edges: Int32Array
    labels: Int32Array
    members: list[tuple[int, ...]]
    count: int


def partition(sets: list[CharSet]) -> Partition:
    """Return the partition of ``sets``. Classes are numbered in the order of first characters."""
    points = [np.array(one.points, dtype=np.int32) for one in sets]
    edges = np.unique(np.concatenate([np.array([0, *SURROGATES], dtype=np.int32), *points]))
    edges = edges[edges < LIMIT].astype(np.int32)
    keys = np.zeros(len(edges), dtype=np.int64)
    bits = 0
    inside = []
    for one in points:
        mask = (np.searchsorted(one, edges, side="right") & 1).astype(np.int64)
        inside.append(mask)
        if bits == KEY_BITS:
            _, keys = np.unique(keys, return_inverse=True)
            bits = int(keys.max()).bit_length()
        keys = keys * 2 + mask
        bits += 1
    nowhere = np.ones(len(edges), dtype=bool)
    for mask in inside:
        nowhere &= mask == 0
    nowhere |= (edges >= SURROGATES[0]) & (edges < SURROGATES[1])
    keys[nowhere] = -1
    _, first, labels = np.unique(keys, return_index=True, return_inverse=True)
    rank = np.full(len(first), DEAD, dtype=np.int32)
    alive = [index for index in np.argsort(first).tolist() if keys[first[index]] >= 0]
    rank[alive] = np.arange(len(alive), dtype=np.int32)
    classes = rank[labels.reshape(-1)]
    heads = first[alive]
    members = [tuple(np.flatnonzero(mask[heads]).tolist()) for mask in inside]
    return Partition(edges, classes, members, len(alive))
