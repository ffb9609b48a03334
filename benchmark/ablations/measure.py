"""Measures: throughput and latency of ablations, the curve over forced hit rates, and achieved
against optimal hit rates. Each tells records, plain data, and returns them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import median
from typing import Any, TypeAlias

from benchmark.ablations.rounds import Run, Size, mixed, room, runs
from benchmark.harness.ablations import ABLATIONS, FULL, Ablation, partial
from benchmark.harness.claim import Claim
from benchmark.harness.measure import MODES
from benchmark.harness.sameness import concerns

Record: TypeAlias = dict[str, Any]
Tell: TypeAlias = Callable[[Record], None]
RATES = (0.0, 0.25, 0.5, 0.75, 1.0)
ORDERS = ("full", "fcfs", "random")
SHARES = (1.0, 0.5, 0.25)


def measure(
    claims: Iterable[Claim], ablations: Sequence[Ablation], size: Size, rounds: int, tell: Tell,
    modes: Sequence[str] = MODES,
) -> list[Record]:  # fmt: skip
    """A record for each claim, ablation and mode, where the ablation concerns the claim: the runs,
    how they relate to the one of ``FULL`` in the same round, and whether all gave its answers,
    which greedy texts in float32 must."""
    found = []
    for claim in claims:
        items = mixed(claim, size)
        tokens = room(claim, items, size)
        chosen = [FULL, *(one for one in ablations if one is not FULL and concerns(one, claim))]
        for mode in modes:
            done = list(runs(chosen, claim, items, size, [mode], rounds, max_total_tokens=tokens))
            full = [run for run in done if run.ablation is FULL]
            for ablation in chosen:
                its = sorted((r for r in done if r.ablation is ablation), key=lambda r: r.round)
                record = _record("ablation", claim, its, tokens)
                beside = sorted(full, key=lambda r: r.round)
                record["relative"] = _relative(its, beside, mode)
                record["relative cpu"] = [one.cpu / two.cpu for one, two in zip(its, beside)]
                record["same answers"] = all(run.answers == full[0].answers for run in its)
                tell(record)
                found.append(record)
    return found


def hit_rate_curve(
    claim: Claim, rates: Sequence[float], size: Size, rounds: int, tell: Tell,
    modes: Sequence[str] = MODES,
) -> list[Record]:  # fmt: skip
    """A record for each forced share of the hits and each mode: latency to the first token and to
    the end, requests of a pass, throughput, and the hit rate that was then achieved."""
    items = mixed(claim, size)
    tokens = room(claim, items, size)
    chosen = [partial(rate) for rate in rates]
    done = list(runs(chosen, claim, items, size, modes, rounds, max_total_tokens=tokens))
    found = []
    for mode in modes:
        for rate, ablation in zip(rates, chosen):
            its = [run for run in done if run.ablation is ablation and run.mode == mode]
            record = {**_record("curve", claim, its, tokens), "forced": rate}
            tell(record)
            found.append(record)
    return found


def hit_rates(
    claims: Iterable[Claim], size: Size, tell: Tell, orders: Sequence[str] = ORDERS,
    shares: Sequence[float] = SHARES,
) -> list[Record]:  # fmt: skip
    """A record for each claim, order of admission and share of the memory: achieved and optimal hit
    rate of one run. With memory enough (1.0) the order hardly counts; with less it does."""
    found = []
    for claim in claims:
        items = mixed(claim, size)
        for share in shares:
            sized = Size(size.model, size.scale, share, size.seed)
            enough = share >= 1
            settings = {} if enough else {"max_total_tokens": room(claim, items, sized)}
            chosen = [ABLATIONS[name] for name in orders]
            for run in runs(chosen, claim, items, sized, ["throughput"], 1, **settings):
                tokens = settings.get("max_total_tokens", 0)
                record = {**_record("hits", claim, [run], tokens), "share of memory": share}
                tell(record)
                found.append(record)
    return found


def _record(kind: str, claim: Claim, its: Sequence[Run], tokens: int) -> Record:
    """``tokens`` 0: as many as there are."""
    first = its[0]
    return {
        "kind": kind, "claim": claim.name, "ablation": first.ablation.name, "mode": first.mode,
        "items": len(first.answers), "tokens": tokens, "rate": [run.rate for run in its],
        "cpu": [run.cpu for run in its], "latency": [run.latency for run in its],
        "first_token": [run.first_token for run in its],
        "batch": median(run.hits.batch for run in its),
        "evicted": median(run.evicted for run in its),
        "retractions": median(run.retractions for run in its),
        **{name: median(getattr(run.hits, name) for run in its)
           for name in ("prompt", "computed", "least", "held", "achieved", "optimal", "share")},
    }  # fmt: skip


def _relative(its: Sequence[Run], full: Sequence[Run], mode: str) -> list[float]:
    """Round by round: items a second over those with everything on, or its latency over theirs."""
    if mode == "latency":
        return [one.latency / other.latency for one, other in zip(its, full)]
    return [one.rate / other.rate for one, other in zip(its, full)]
