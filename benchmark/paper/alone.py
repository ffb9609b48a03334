"""Alone: our engine against itself in this process, with a part off, watched, or with less to
do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing

from benchmark.ablations.measure import hit_rates
from benchmark.ablations.rounds import Run, Size, alone, mixed, room, room_of, runs
from benchmark.harness import sameness
from benchmark.harness.ablations import Ablation
from benchmark.harness.claim import Answer, Claim, Item, Scale
from benchmark.harness.measure import accuracy
from benchmark.harness.side import Side
from benchmark.paper.claims import SEEING
from benchmark.paper.desk import Desk
from benchmark.paper.plan import Record
from benchmark.paper.sizing import ROUNDS

MEMORY = 0.5  # share of all items' KV that the cache holds: with evictions, order counts
DEARER = 2.0  # times the run with everything on: a guess of the others' average


def compared(
    desk: Desk, table: str, claim: Claim, chosen: Sequence[Ablation], mode: str, until: float
) -> str:
    """Engines with ``chosen`` in turns; what was left undone, or "". Items come mixed, and there is
    less memory than they leave in the cache, so that their order counts."""
    size = _size(desk, desk.trial)
    items = mixed(claim, size)
    found = alone(claim, items, size)  # the run's own time: an engine's start is none of an item's
    tokens, each = room_of(found, size), DEARER / found.rate
    left = max(0.0, until - time.monotonic())
    count = int(left / (ROUNDS * len(chosen) * each))
    count = max(desk.least[mode], min(desk.most[mode], count))
    if count != desk.trial:
        size = _size(desk, count)
        items = mixed(claim, size)
        tokens = room(claim, items, size)
    done = runs(chosen, claim, items, size, [mode], ROUNDS, max_total_tokens=tokens)
    first: dict[int, list[Answer]] = {}  # by round: what the others' answers are held against
    with closing(done):
        for number, run in enumerate(done, 1):
            beside = first.setdefault(run.round, run.answers)
            desk.tell(_record(table, claim, run, beside))
            rounds, within = divmod(number, len(chosen))
            if not within and rounds < ROUNDS and time.monotonic() > until:
                return f"{mode}: {rounds} of {ROUNDS} rounds"
    return ""


def _size(desk: Desk, count: int) -> Size:
    return Size(desk.model(), Scale(count, desk.long), MEMORY, desk.seed)


def _record(table: str, claim: Claim, run: Run, beside: Sequence[Answer]) -> Record:
    """Record as of ``records.of_run``. ``differ``: answers that are not those ``beside``."""
    return {
        "kind": "run", "table": table, "claim": claim.name, "mode": run.mode,
        "side": run.ablation.name, "round": run.round, "items": len(run.answers),
        "rate": round(run.rate, 4), "latency": round(run.latency, 4),
        "first_token": round(run.first_token, 5), "hit_rate": round(run.hits.achieved, 4),
        "batch": round(run.hits.batch, 2),
        "differ": sum(one != other for one, other in zip(run.answers, beside, strict=True)),
    }  # fmt: skip


def hit_rate(desk: Desk, claim: Claim) -> None:
    """Achieved and optimal, with memory for everything and with less."""
    model = desk.seeing() if claim.name == SEEING else desk.model()
    size = Size(model, Scale(desk.counted, desk.long), seed=desk.seed)
    hit_rates([claim], size, desk.tell, ["full"], desk.memories)


def same_answers(
    desk: Desk, claim: Claim, ablations: Sequence[Ablation], others: Sequence[Side] = ()
) -> Iterator[Record]:
    """Compare each of ``ablations`` and ``others`` with everything on."""
    items, full = claim.items(Scale(desk.answered), desk.seed), []
    work = [(claim, items)]
    for found in sameness.compared(work, ablations, desk.trained(claim)):
        yield told(claim, items, found.full, found.other, found.ablation.name)
        full = list(found.full)
    for side in others:
        answers = side.run(claim, items, "throughput").answers
        yield told(claim, items, full, answers, side.name)


def told(
    claim: Claim, items: Sequence[Item], ours: Sequence[Answer], theirs: Sequence[Answer], name: str
) -> Record:
    """Record of the number of equal answers, and of the first two that differ."""
    pairs = list(zip(ours, theirs, strict=True))
    differ = [[at, one, other] for at, (one, other) in enumerate(pairs) if one != other]
    record: Record = {
        "kind": "answers", "claim": claim.name, "side": name, "items": len(items),
        "equal": len(items) - len(differ), "right": accuracy(claim, items, ours),
        "right_there": accuracy(claim, items, theirs),
    }  # fmt: skip
    return {**record, "differ": differ[0]} if differ else record
