"""Rounds: engines with different parts off run the same items in turns, watched."""

from __future__ import annotations

import random
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmark.harness.ablations import FULL, Ablated, Ablation, opened
from benchmark.harness.claim import Claim, Item, Scale
from benchmark.harness.hits import Hits, hits
from benchmark.harness.hooks.patch import inner
from benchmark.harness.hooks.recorder import recording
from benchmark.harness.rounds import in_turns
from benchmark.models import EMBEDDED


@dataclass(frozen=True)
class Size:
    """Amount of work that is measured, and its model.

    Attributes:
        model: a checkpoint.
        scale: items of a claim.
        memory: KV tokens, as a share of what a run of all items leaves in a cache without bounds;
            at least the longest request's. Below 1 something is evicted, so that the order counts.
        seed: of the items, and of the order in which they come.
    """

    model: Path = EMBEDDED
    scale: Scale = field(default_factory=lambda: Scale(16))
    memory: float = 0.5
    seed: int = 0

    @property
    def dtype(self) -> str:
        """float32 for the embedded model, whose texts are compared; else the checkpoint's."""
        return "float32" if self.model == EMBEDDED else "auto"


@dataclass(frozen=True)
class Run:
    """One run of all items on one engine.

    Attributes:
        rate: items a second; cpu: seconds of the processors an item, in this process, which other
            work on the machine disturbs less.
        latency: seconds of an item, on average, where they ran one after the other; else from a
            request's arrival to its end.
        first_token: seconds from a request's arrival to its first token, on average; 0 where
            no token was sampled.
        evicted, retractions: tokens and requests that had to make room.
    """

    ablation: Ablation
    mode: str
    round: int
    rate: float
    cpu: float
    latency: float
    first_token: float
    hits: Hits
    evicted: int
    retractions: int
    answers: list[Any]


def mixed(claim: Claim, size: Size) -> list[Item]:
    """The claim's items in a random order of arrival."""
    items = list(claim.items(size.scale, size.seed))
    random.Random(size.seed).shuffle(items)
    return items


def room(claim: Claim, items: Sequence[Item], size: Size) -> int:
    """KV tokens of ``size.memory`` of what a run of these items leaves in the cache."""
    return room_of(alone(claim, items, size), size)


def alone(claim: Claim, items: Sequence[Item], size: Size) -> Run:
    """Run these items with memory for everything and nothing switched off."""
    with _engines([FULL], size) as [side]:
        return run(side, claim, items, "throughput", 0)


def room_of(found: Run, size: Size) -> int:
    """``room`` of the items of ``found``."""
    return max(int(size.memory * found.hits.held), found.hits.longest)


def runs(
    ablations: Sequence[Ablation], claim: Claim, items: Sequence[Item], size: Size,
    modes: Sequence[str], rounds: int, **settings: Any,
) -> Generator[Run, None, None]:  # fmt: skip
    """Each ablation in turns, every second round in the opposite order, each run with an empty
    cache. Every side has one run before the first round, which does not count."""
    with _engines(ablations, size, **settings) as sides:
        for side in sides:
            run(side, claim, items[:2], "throughput", 0)
        for mode in modes:
            for number, side in in_turns(sides, rounds):
                yield run(side, claim, items, mode, number)


def run(side: Ablated, claim: Claim, items: Sequence[Item], mode: str, number: int) -> Run:
    """All items once, with an empty cache."""
    side.flush()
    engine = inner(side.engine)
    evicted, retractions = engine.store.tree.evicted, engine.stats.retractions
    used = time.process_time()
    with recording(engine) as recorded:
        outcome = side.run(claim, items, mode)
    used = time.process_time() - used
    engine.store.check()
    wanted = [one for one in recorded.requests if not one.hint]
    first = [one.first - one.received for one in wanted if one.first]
    spans = outcome.latencies or [one.ended - one.received for one in wanted]
    return Run(
        side.ablation, mode, number, outcome.rate(), used / len(items), fmean(spans),
        fmean(first or [0.0]), hits(recorded),
        (engine.store.tree.evicted - evicted) * engine.info.page_size,
        engine.stats.retractions - retractions, outcome.answers,
    )  # fmt: skip


@contextmanager
def _engines(ablations: Sequence[Ablation], size: Size, **settings: Any) -> Iterator[list[Ablated]]:
    sides: list[Ablated] = []
    try:
        for ablation in ablations:
            sides.append(opened(ablation, size.model, dtype=size.dtype, **settings))
        yield sides
    finally:
        for side in sides:
            side.close()
