"""Rounds: the sides (our engine and its peers) run one claim in turns, until their rounds are done
or their time is used up."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence

from benchmark.harness.claim import Claim, Item, Scale
from benchmark.harness.measure import MODES
from benchmark.harness.side import Side
from benchmark.harness.turns import Race
from benchmark.paper.desk import Desk
from benchmark.paper.plan import Record
from benchmark.paper.records import of_run
from benchmark.paper.sizing import ROUNDS, SLOW_SHARE, sized

SEEDS = 1000  # between the items of two rounds
LEAST = 2  # items of a side whose time is cut


class _Paced(Race):
    """``seconds`` are for the slow alone: the others' rounds are sized so that all fit."""

    def most(self, side: Side) -> int:
        return super().most(side) if side.name in self.once else sys.maxsize


class Rounds:
    """One claim in one mode, into one table of the report. A side that fails is left out from there
    on.

    Attributes:
        alone: seconds of one item, by side, once that is known.
        sides: those that have not failed.
    """

    def __init__(
        self, desk: Desk, table: str, claim: Claim, mode: str, sides: Sequence[Side]
    ) -> None:
        self._desk, self._table, self._claim, self._mode = desk, table, claim, mode
        self._race = _Paced(claim, mode, self._tell, 0.0, list(sides), least=LEAST)
        self._sides = {side.name: side for side in sides}
        self.alone: dict[str, float] = {}

    @property
    def sides(self) -> list[Side]:
        return self._race.sides

    def run(self, until: float, alone: Mapping[str, float] | None = None) -> str:
        """Measure and report; return what was left undone, or "". Sides whose time for one item is
        known already (``alone``, by side) are not measured for it.

        Raises RuntimeError where ours, the first, fails.
        """
        desk, race = self._desk, self._race
        if alone is None:
            self._try(until)
        else:
            race.each = {side.name: alone[side.name] for side in race.sides}
        left = max(0.0, until - time.monotonic())
        race.seconds = SLOW_SHARE * left
        count = sized(race.each, left, desk.least[self._mode], desk.most[self._mode])
        for number in range(ROUNDS):
            began = time.monotonic()
            race.round(number, self._items(count, number + 1))
            took = time.monotonic() - began
            if number + 1 < ROUNDS and time.monotonic() + 0.7 * took > until:
                return f"{self._mode}: {number + 1} of {ROUNDS} rounds"
        return ""

    def _try(self, until: float) -> None:
        """Run one item on every side, and another on ours and on each that seems slow, as a
        system's first item of a kind is. Then, for throughput, run a few on all sides that are not
        slow, or on none: the times of an item are compared, and it takes less where more run at
        once."""
        race, two = self._race, self._items(2, 0)
        most = SLOW_SHARE * (until - time.monotonic())
        for side in list(race.sides):
            for item in two:
                if not (outcome := race.ask(side, [item])):
                    break
                before = race.each.get(side.name, outcome.seconds)
                race.each[side.name] = min(before, outcome.seconds)
                seems_slow = side is race.sides[0] or race.slow(side)
                if not seems_slow or outcome.seconds > most:
                    break
        self.alone = dict(race.each)
        if self._mode == "throughput":
            count = self._desk.trial
            items, most = self._items(count, 0), SLOW_SHARE * (until - time.monotonic())
            near = [side for side in race.sides if not race.slow(side)]
            if count * sum(self.alone[side.name] for side in near) < most * len(near):
                for side in near:
                    if outcome := race.ask(side, items):
                        race.each[side.name] = outcome.seconds / count
        race.each = {side.name: race.each[side.name] for side in race.sides}

    def _items(self, count: int, round: int) -> list[Item]:
        """Items of a round. Every round of every mode has its own, so that no answer comes from a
        cache that an earlier one filled."""
        scale = Scale(count, self._desk.long)
        number = round + (ROUNDS + 1) * MODES.index(self._mode)
        return self._claim.items(scale, self._desk.seed + SEEDS * number)

    def _tell(self, record: Record) -> None:
        if record["kind"] == "run":
            seen = getattr(self._sides[record["side"]], "seen", {})
            self._desk.tell(of_run(self._table, record, seen))
            return
        if record["side"] == next(iter(self._sides)):
            raise RuntimeError(f"{record['side']}: {record['why']}")
        self._desk.out(record["side"], record["why"], failed=True, claim=record["claim"])
