"""Turns: sides that run a claim one after the other, round after round, so that what changes on the
machine changes for all. A side without a request stands still."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from benchmark.harness.claim import Claim, Item
from benchmark.harness.machine import now
from benchmark.harness.measure import Outcome, accuracy
from benchmark.harness.rounds import rotated
from benchmark.harness.side import Side
from benchmark.peers.figures import Middle

Record: TypeAlias = dict[str, Any]
WARM = 2  # items of the first run of each, which is not counted
PATIENCE = 4.0  # times what ours takes: beyond, a side runs once
LEAST = 4  # items of one whose time is cut


def take_turns(
    sides: Sequence[Side], claim: Claim, items: Callable[[int], Sequence[Item]], mode: str,
    rounds: int, tell: Callable[[Record], None], *, seconds: float = 120.0,
) -> None:  # fmt: skip
    """Run every side in every round and ``tell`` a record of each run.

    Args:
        sides: ours first: the others' ratios are to it. All are stopped by the time it returns.
        items: those of a round; every round must have its own, or what one left in a cache would
            answer the next. Round -1 is the warm-up.
        seconds: what one run may take. A side that would take longer runs on the first of the
            items only, and one that takes ``PATIENCE`` times our time runs in the first round
            only; both are in the record. Rates are per item, so they can be compared.

    A side that fails is reported (``kind`` "left out") and runs no more.
    """
    race = Race(claim, mode, tell, seconds, list(sides))
    for side in sides:
        side.pause()
    warm = list(items(-1))[:WARM]
    for side in sides:
        if outcome := race.ask(side, warm):
            race.each[side.name] = outcome.seconds / len(warm)
    for number in range(rounds):
        race.round(number, list(items(number)))


def ratios(records: Sequence[Record], ours: str = "sglang") -> dict[tuple[str, str, str], Middle]:
    """Ratios of our rate to a side's, by claim, mode and side: of each round's neighbours, the
    median, the least and the most."""
    runs = [record for record in records if record["kind"] == "run"]
    mine = {(r["claim"], r["mode"], r["round"]): r["rate"] for r in runs if r["side"] == ours}
    found: dict[tuple[str, str, str], list[float]] = {}
    for run in runs:
        rate = mine.get((run["claim"], run["mode"], run["round"]))
        if run["side"] != ours and rate is not None:
            key = run["claim"], run["mode"], run["side"]
            found.setdefault(key, []).append(rate / run["rate"])
    return {key: middle for key, values in found.items() if (middle := Middle.of(values))}


def record(
    claim: Claim, side: Side, items: Sequence[Item], mode: str, number: int, outcome: Outcome
) -> Record:
    """Record of a run; ``number`` is the round's."""
    return {
        "kind": "run", "time": now(),
        "claim": claim.name, "side": side.name, "backend": side.backend, "mode": mode,
        "round": number, "items": len(items), "rate": outcome.rate(),
        "accuracy": accuracy(claim, items, outcome.answers), **outcome.plain(),
        "versions": dict(side.versions),
    }  # fmt: skip


@dataclass
class Race:
    """Runs of a claim in a mode. ``sides`` are those that have not failed; ``each``: seconds an
    item, as last seen; ``least``: items of one whose time is cut; ``once``: sides that are too
    slow for more than round 0."""

    claim: Claim
    mode: str
    tell: Callable[[Record], None]
    seconds: float
    sides: list[Side]
    each: dict[str, float] = field(default_factory=dict)
    least: int = LEAST
    once: set[str] = field(default_factory=set)

    def round(self, number: int, items: list[Item]) -> None:
        first: Outcome | None = None  # outcome of round 0, which the others' answers must equal
        order = rotated(self.sides, number)
        # Settled before any side runs, by what all did with as many items: each is quicker, item by
        # item, with more of them. And once for all rounds, which would else be chosen by outcome.
        if number == 0:
            self.once = {side.name for side in self.sides if self.slow(side)}
        turns = [(side, items[: self.most(side)]) for side in order]
        for side, chosen in turns:
            if number and side.name in self.once:
                continue
            outcome = self.ask(side, chosen)
            if outcome is None:
                continue
            self.each[side.name] = outcome.seconds / len(chosen)
            found = record(self.claim, side, chosen, self.mode, number, outcome)
            if number == 0:
                first = first or outcome
                pairs = list(zip(first.answers, outcome.answers))
                found["equal"] = sum(a == b for a, b in pairs) / len(pairs)
            self.tell({**found, "offered": len(items)})

    def most(self, side: Side) -> int:
        """Items that it has the time for."""
        return max(self.least, int(self.seconds / self.each[side.name]))

    def slow(self, side: Side) -> bool:
        return self.each[side.name] > PATIENCE * self.each[self.sides[0].name]

    def ask(self, side: Side, items: Sequence[Item]) -> Outcome | None:
        """None from one that failed."""
        try:
            side.resume()
            side.flush()
            return side.run(self.claim, items, self.mode)
        except Exception as error:  # any error of a peer's client; the others go on
            self.sides.remove(side)
            why = f"{type(error).__name__}: {error}"
            about = {"claim": self.claim.name, "mode": self.mode, "side": side.name}
            self.tell({"kind": "left out", **about, "why": why})
            return None
        finally:
            side.pause()
