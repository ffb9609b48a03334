"""Sides: engines that differ in how they write forced text, and what a run on one amounts to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from sglang.errors import BackendError

from benchmark.harness.rounds import in_turns

SETTINGS: dict[str, dict[str, Any]] = {
    "exact": {},
    "off": {"disable_jump_forward": True},
    "string": {"jump_forward": "string"},
}


COMMON: dict[str, Any] = {"log_level": "warning", "constrained_json_whitespace_pattern": ""}


class Failed(Exception):
    """A request was not answered as it should."""


@dataclass(frozen=True)
class Run:
    """One batch on one engine.

    Attributes:
        cpu: seconds of the processor, in this process.
        tokens: ids of each answer.
        texts: text of each answer.
        cut: answers that ended because they were too long.
        passes: forward passes, summed over the requests.
        forced: tokens that were the only ones possible, and never sampled.
        accepted: drafted tokens that the pass that computed them agreed with.
    """

    seconds: float
    cpu: float
    tokens: list[list[int]]
    texts: list[str]
    cut: int
    passes: int
    forced: int
    accepted: int

    @property
    def count(self) -> int:
        return sum(map(len, self.tokens))

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self.count / self.seconds


@contextmanager
def engines(names: Sequence[str], settings: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The engines called ``names``, which write compact JSON; all are stopped at the end."""
    from sglang import Engine

    with ExitStack() as stack:
        found = {}
        for name in names:
            engine = Engine(**COMMON, **settings, **SETTINGS[name])
            stack.callback(engine.shutdown)
            found[name] = engine
        yield found


def run(engine: Any, prompts: Sequence[str], sampling: Sequence[dict[str, Any]]) -> Run:
    """All prompts at once, with an empty prefix cache. Raises Failed."""
    engine.flush_cache()
    began, used = time.perf_counter(), time.process_time()
    try:
        answers = engine.generate(list(prompts), list(sampling))
    except BackendError as error:
        raise Failed(str(error)) from error
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    ends = [answer["meta_info"]["finish_reason"] for answer in answers]
    for end in ends:
        if end["type"] not in ("stop", "length"):
            raise Failed(f"a request ended with {end}")
    meta = [answer["meta_info"] for answer in answers]
    return Run(
        seconds,
        cpu,
        [answer["output_ids"] for answer in answers],
        [answer["text"] for answer in answers],
        sum(end["type"] == "length" for end in ends),
        sum(entry["forward_passes"] for entry in meta),
        sum(entry["forced_tokens"] for entry in meta),
        sum(entry["accepted_tokens"] for entry in meta),
    )


def runs_of(
    engines: dict[str, Any], prompts: Sequence[str], sampling: Sequence[dict[str, Any]], rounds: int
) -> dict[str, list[Run]]:
    """``rounds`` runs of each after one that is not counted; every second in opposite order."""
    found: dict[str, list[Run]] = {name: [] for name in engines}
    for engine in engines.values():
        run(engine, prompts, sampling)
    for _, name in in_turns(engines, rounds):
        found[name].append(run(engines[name], prompts, sampling))
    return found


def ratios(first: Sequence[Run], second: Sequence[Run]) -> list[float]:
    """Ratios of the tokens a second of ``first`` to those of ``second``, round by round."""
    return [a.rate / b.rate for a, b in zip(first, second)]


def cpu_ratios(first: Sequence[Run], second: Sequence[Run]) -> list[float]:
    """The same by the processor's time, which other work on the machine disturbs less."""
    return [(a.count / a.cpu) / (b.count / b.cpu) for a, b in zip(first, second)]
