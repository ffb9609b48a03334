"""Rounds: contestants measured in turns, so that other work on the machine meets them all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class WrongAnswer(Exception):
    """A contestant gave another answer than the first, or sent another request."""


def in_turns(contestants: Iterable[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Round and contestant, one after the other, ``ordered``."""
    everyone = list(contestants)
    for number in range(rounds):
        for contestant in ordered(everyone, number):
            yield number, contestant


def ordered(contestants: Sequence[T], number: int) -> Sequence[T]:
    """Order of a round: every second one goes the opposite way."""
    return contestants[:: -1 if number % 2 else 1]


def take_turns(contestants: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each contestant in each round.

    Raises WrongAnswer where what they return is not the same.
    """
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    expected = next(iter(contestants.values()))()
    for _, name in in_turns(contestants, rounds):
        began = time.perf_counter()
        got = contestants[name]()
        seconds[name].append(time.perf_counter() - began)
        if got != expected:
            raise WrongAnswer(f"{name}: {got!r:.300} instead of {expected!r:.300}")
    return seconds


def rotated(contestants: list[T], number: int) -> list[T]:
    """Order of a round: the same in every one, begun one further, so that none always follows the
    same one's heat."""
    at = number % max(1, len(contestants))
    return contestants[at:] + contestants[:at]
