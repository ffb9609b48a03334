"""Retrieve: the passages that a question is about, by BM25."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

PASSAGES = 3
SATURATION, BY_LENGTH = 1.5, 0.75


class Index:
    """Words of some passages, counted once."""

    def __init__(self, passages: tuple[str, ...]) -> None:
        self.passages = passages
        self._bags = [Counter(_words(passage)) for passage in passages]
        self._mean = sum(bag.total() for bag in self._bags) / len(passages)
        self._holders = Counter(word for bag in self._bags for word in bag)

    def search(self, question: str, count: int = PASSAGES) -> list[str]:
        """The ``count`` best, best first; of equals the earlier."""
        words = _words(question)
        scores = [sum(self._score(word, bag) for word in words) for bag in self._bags]
        ranked = sorted(range(len(scores)), key=lambda place: -scores[place])
        return [self.passages[place] for place in ranked[:count]]

    def _score(self, word: str, bag: Counter[str]) -> float:
        holders = self._holders[word]
        rarity = math.log(1 + (len(self._bags) - holders + 0.5) / (holders + 0.5))
        length = 1 - BY_LENGTH + BY_LENGTH * bag.total() / self._mean
        return rarity * bag[word] * (SATURATION + 1) / (bag[word] + SATURATION * length)


def index(passages: Sequence[str]) -> Index:
    """Index of passages, kept for the next question about them."""
    return _index(tuple(passages))


@lru_cache(maxsize=16)
def _index(passages: tuple[str, ...]) -> Index:
    return Index(passages)


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())
