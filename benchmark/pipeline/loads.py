"""Loads: requests with their arrivals and lengths, functions of a seed."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

AZURE = Path(__file__).resolve().parents[1] / "data" / "azure_conv.csv"


@dataclass(frozen=True)
class Asked:
    """A request: its arrival in seconds, and tokens of prompt and answer."""

    arrival: float
    prompt: int
    answer: int


def _sharegpt(r: random.Random) -> tuple[int, int]:
    """Lengths like those of ShareGPT, as gLLM cuts them: at most 1,024 and 512 tokens."""
    prompt = min(1024, max(4, int(r.lognormvariate(4.6, 1.25))))
    return prompt, min(512, max(2, int(r.lognormvariate(5.0, 1.0))))


@cache
def _azure_lengths() -> list[tuple[int, int]]:
    with AZURE.open() as file:
        return [(int(row["prompt"]), int(row["answer"])) for row in csv.DictReader(file)]


def _azure(r: random.Random) -> tuple[int, int]:
    prompt, answer = r.choice(_azure_lengths())
    return max(prompt, 1), max(answer, 1)


def _long(r: random.Random) -> tuple[int, int]:
    """ShareGPT's lengths; 8 % of the prompts have 8 to 32 thousand tokens."""
    prompt, answer = _sharegpt(r)
    return (r.randint(8192, 32768), answer) if r.random() < 0.08 else (prompt, answer)


LENGTHS: dict[str, Callable[[random.Random], tuple[int, int]]] = {
    "sharegpt": _sharegpt, "azure": _azure, "long": _long,
}  # fmt: skip


def load(kind: str, rate: float, seconds: float, seed: int) -> list[Asked]:
    """Requests that arrive within ``seconds``, as a Poisson process of ``rate`` a second."""
    r, now, found = random.Random(f"{kind} {seed}"), 0.0, list[Asked]()
    while (now := now + r.expovariate(rate)) < seconds:
        found.append(Asked(now, *LENGTHS[kind](r)))
    return found
