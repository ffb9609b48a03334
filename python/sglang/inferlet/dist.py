"""Dist: a distribution of the next token, as ``get_next_dist`` answers it (Pie, section 4.2)."""

from __future__ import annotations

import base64
import math
from array import array
from collections.abc import Sequence
from typing import Any


class Dist:
    """The most likely next tokens, most likely first, or all of the vocabulary in order of ids.

    Attributes:
        ids: token ids.
        logprobs: natural logarithms of their probabilities among all tokens.
        probe: log-probabilities of the tokens of `probe`.
    """

    def __init__(self, answer: dict[str, Any]) -> None:
        self.logprobs = _floats(answer["logprobs"])
        found = array("i")
        found.frombytes(raw(answer["ids"]))
        self.ids: Sequence[int] = found if found else range(len(self.logprobs))
        self.probe = _floats(answer["probe"])

    def max_index(self) -> int:
        """The most likely token; of equal ones the first."""
        if isinstance(self.ids, array):
            return int(self.ids[0])
        return max(range(len(self.logprobs)), key=self.logprobs.__getitem__)

    def top(self, k: int) -> list[tuple[int, float]]:
        """The ``k`` most likely (token, log-probability), most likely first."""
        order = sorted(range(len(self.ids)), key=lambda i: -self.logprobs[i])[:k]
        return [(self.ids[i], self.logprobs[i]) for i in order]

    def probs(self) -> list[float]:
        """Probabilities in the order of ``ids``."""
        return [math.exp(value) for value in self.logprobs]

    def __len__(self) -> int:
        return len(self.ids)


def raw(value: str | bytes) -> bytes:
    """Bytes of an answer, which is base64 where a turn travels as text."""
    return base64.b64decode(value) if isinstance(value, str) else value


def _floats(data: str | bytes) -> array[float]:
    found = array("f")
    found.frombytes(raw(data))
    return found
