"""Numbered: texts of a small collection, each with a number before it, so that a text that comes
again, in the same run or in the next, is in no cache."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def numbered(texts: Sequence[T], count: int, seed: int) -> list[tuple[str, T]]:
    """``count`` (at most 90,000) of ``texts`` in a random order, and from the beginning again where
    they are too few; and before each "No. 12345. ", another number for each."""
    draw = random.Random(seed)
    order = draw.sample(range(len(texts)), len(texts))
    numbers = draw.sample(range(10_000, 100_000), count)
    return [
        (_label(number), texts[order[place % len(order)]]) for place, number in enumerate(numbers)
    ]


def unlike(draw: random.Random) -> str:
    """The same before what all items of a seed begin with, so that another seed's do not."""
    return _label(draw.randrange(10_000, 100_000))


def _label(number: int) -> str:
    return f"No. {number}. "
