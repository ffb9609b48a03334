"""Sameness: optimisations change no answer. Greedy, in float32, a trained model must say the very
same with everything on, with everything off, and with any one part off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from benchmark.harness.ablations import ABLATIONS, ALL_OFF, FULL, Ablation, opened
from benchmark.harness.claim import Answer, Claim, Item
from benchmark.models import EMBEDDED

Work: TypeAlias = tuple[Claim, Sequence[Item]]
OTHERS = (ALL_OFF, *(one for one in ABLATIONS.values() if one is not FULL))
"""What is compared with everything on."""


@dataclass(frozen=True)
class Compared:
    """Answers to a claim's items, everything on (``full``) and under an ablation (``other``)."""

    claim: Claim
    ablation: Ablation
    items: Sequence[Item]
    full: Sequence[Answer]
    other: Sequence[Answer]

    @property
    def differ(self) -> list[int]:
        """Indices of the items that are answered otherwise."""
        return [at for at, pair in enumerate(zip(self.full, self.other)) if pair[0] != pair[1]]

    def told(self) -> str:
        """One line; of a difference, the first item that has it."""
        head = f"{self.claim.name}, {self.ablation.name}: "
        if not self.differ:
            return f"{head}{len(self.items)} answers are the same"
        at = self.differ[0]
        return (
            f"{head}{len(self.differ)} of {len(self.items)} answers differ; item {at} has "
            f"{self.full[at]!r:.300} with everything on and {self.other[at]!r:.300} without"
        )


def compared(
    works: Sequence[Work], ablations: Sequence[Ablation] = OTHERS, model_path: Path = EMBEDDED
) -> Iterator[Compared]:
    """Each work under each ablation that can make a difference to it, one engine for all works."""
    full = _answers(FULL, works, model_path)
    for ablation in ablations:
        at = [n for n, (claim, _) in enumerate(works) if concerns(ablation, claim)]
        for number, answers in zip(at, _answers(ablation, [works[n] for n in at], model_path)):
            claim, items = works[number]
            yield Compared(claim, ablation, items, full[number], answers)


def concerns(ablation: Ablation, claim: Claim) -> bool:
    """Whether the claim has any use for what is switched off."""
    return claim.constrained or not ablation.constrained


def _answers(ablation: Ablation, works: Sequence[Work], model_path: Path) -> list[list[Answer]]:
    if not works:
        return []
    side = opened(ablation, model_path, dtype="float32")
    try:
        found = []
        for claim, items in works:
            side.flush()
            found.append(side.run(claim, items, "throughput").answers)
        return found
    finally:
        side.close()
