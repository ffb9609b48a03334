"""Wire: how a contender's process is spoken to. Standard library only: every Python here reads it.

One JSON object a line, a question on standard input, its answer on standard output; ``do`` names a
method of the side and the rest are its arguments:

    {"do": "load", "spec": {...}}             -> {"ok": {"versions": {...}, ...}}
    {"do": "run", "requests": [[ids, n]...]}  -> {"ok": {"seconds": 1.5, "ids": [[...]...]}}

An error is answered with {"error": "..."}. Libraries print where they like, so what is written to
standard output by other code goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Protocol

# A prompt's ids, and how many tokens to generate greedily, end tokens ignored. A list from the
# wire.
Request = tuple[list[int], int]


def shared_beginning(prompts: Sequence[list[int]]) -> int:
    """Length of what all of several prompts begin with, last tokens left out; 0 of one prompt."""
    if len(prompts) < 2:
        return 0
    least, most = min(prompts), max(prompts)  # in order, all others lie between these two
    pairs = zip(least[:-1], most[:-1])
    short = min(len(prompt) for prompt in prompts) - 1
    return min(short, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))


class Loaded(Protocol):
    """A side that loads something first; it may have more methods."""

    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        """Get ready; returns what a reader wants to know: versions, settings."""


class Side(Loaded, Protocol):
    """A contender. Times are its own, by ``perf_counter``, around the work and nothing else."""

    def run(self, requests: list[Request]) -> dict[str, Any]:
        """All requests at once: ``seconds`` from the first request to the last answer, ``ids``
        generated for each, and where it streams ``ttft``, each request's seconds to its first
        token."""


def serve(side: Loaded) -> None:
    """Answer until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {"ok": getattr(side, question.pop("do"))(**question)}
        except Exception as error:  # the other side says what it was
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
