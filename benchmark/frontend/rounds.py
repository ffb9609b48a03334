"""Rounds: contestants measured in turns, so that other work on the machine meets them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any


class WrongAnswer(Exception):
    """A contestant gave another answer than the first, or sent another request."""


def take_turns(contestants: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contestant in each round; every second round in the opposite order.

    Raises WrongAnswer where what they return is not the same.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    expected = next(iter(contestants.values()))()
    for number in range(rounds):
        for name in list(contestants)[:: -1 if number % 2 else 1]:
            began = time.perf_counter()
            got = contestants[name]()
            seconds[name].append(time.perf_counter() - began)
            if got != expected:
                raise WrongAnswer(f"{name}: {got!r:.300} instead of {expected!r:.300}")
    return seconds
