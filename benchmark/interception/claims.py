"""Claims: what arm ``priced`` must reach against the other arms, and which of it was missed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from benchmark.interception.records import MIXED, Point, Record, mean

CLAIMED_SECONDS = 240.0  # virtual, of a run; shorter ones are not judged
MOST_STALL = 0.02  # time of copies beyond their passes, over that of the passes
MOST_AGAIN = 0.15  # tokens computed again a finished session, over those of improved-discard
LEAST_SINGLE = 0.97  # of the better one of preserve and radix, whatever the workload and rate
LEAST_ORACLE, LEAST_HINTED = 0.95, 0.93  # sessions finished, over those with an oracle
HINTED = ("priced hints / 10", "priced hints x 10")


class Claim(NamedTuple):
    """A least ratio between arm ``priced`` and another, at one workload and rate.

    Attributes:
        name: of a number of ``Outcome``.
        larger: whether that number is better the larger it is.
    """

    workload: str
    rate: float
    name: str
    other: str
    ratio: float
    larger: bool = False


CLAIMS = (
    Claim(MIXED, 6.0, "finished", "discard", 2.2, larger=True),
    Claim(MIXED, 6.0, "finished", "radix", 1.5, larger=True),
    Claim(MIXED, 6.0, "finished", "preserve", 1.3, larger=True),
    Claim(MIXED, 6.0, "finished", "min-waste", 1.0, larger=True),
    Claim(MIXED, 4.0, "p50", "discard", 8.0),
    Claim(MIXED, 4.0, "p50", "radix", 1.6),
    Claim(MIXED, 4.0, "ttft", "discard", 3.0),
    Claim("qa", 4.0, "p50", "preserve", 0.97),
    Claim("qa", 4.0, "p50", "min-waste", 1.2),
    Claim("qa", 4.0, "p50", "discard", 2.3),
    Claim("chat", 4.0, "p50", "discard", 1.9),
)


class Judgement(NamedTuple):
    """A claim in words, with what was measured; ``kept``: whether it holds."""

    text: str
    kept: bool


def judged(groups: Mapping[Point, list[Record]]) -> list[Judgement]:
    """Judge the claims whose arms were measured for long enough, by means over the seeds."""
    groups = {
        point: records
        for point, records in groups.items()
        if all(record.seconds >= CLAIMED_SECONDS for record in records)
    }
    found = [made for claim in CLAIMS if (made := _claim(claim, groups)) is not None]
    for point in groups:
        if point.arm == "priced":
            found += _at(point, groups)
    return found


def _claim(claim: Claim, groups: Mapping[Point, list[Record]]) -> Judgement | None:
    ours = groups.get(Point(claim.workload, claim.rate, "priced"))
    others = groups.get(Point(claim.workload, claim.rate, claim.other))
    if not ours or not others:
        return None
    mine, theirs = mean(ours, claim.name), mean(others, claim.name)
    got = mine / max(theirs, 1e-9) if claim.larger else theirs / max(mine, 1e-9)
    at = f"{claim.workload} at {claim.rate:g}/s"
    return _least(f"{at}: {claim.name}, priced against {claim.other}", got, claim.ratio)


def _at(point: Point, groups: Mapping[Point, list[Record]]) -> list[Judgement]:
    """Claims at every workload and rate."""
    ours, at = groups[point], f"{point.workload} at {point.rate:g}/s"
    stall = mean(ours, "stall")
    text = f"{at}: copies stall {stall:.2%} of the passes (at most {MOST_STALL:.0%})"
    found = [Judgement(text, stall <= MOST_STALL)]

    def of(arm: str, name: str = "finished") -> float:
        return mean(groups[point._replace(arm=arm)], name)

    known = {each.arm for each in groups if each[:2] == point[:2] and each.lost == point.lost}
    finished = of("priced")
    if "priced closes" in known:
        got = finished / max(of("priced closes"), 1e-9)
        lost = f"{at}, {point.lost:.0%} of the sessions lost: finished, over contexts closed"
        return [*found, _least(lost, got, LEAST_ORACLE)]
    if point.workload == MIXED and "improved-discard" in known:
        again = of("improved-discard", "again")
        share = of("priced", "again") / max(again, 1e-9)
        text = f"{at}: computed again, {share:.1%} of improved-discard's (at most {MOST_AGAIN:.0%})"
        found.append(Judgement(text, share <= MOST_AGAIN))
    if {"preserve", "radix"} <= known:
        best = max(of("preserve"), of("radix"))
        words = f"{at}: finished, over the better one of preserve and radix"
        found.append(_least(words, finished / max(best, 1e-9), LEAST_SINGLE))
    if "priced oracle" in known:
        oracle = max(of("priced oracle"), 1e-9)
        found.append(_least(f"{at}: finished, over an oracle's", finished / oracle, LEAST_ORACLE))
        found += [
            _least(f"{at}: finished with {arm[7:]}, over an oracle's", of(arm) / oracle,
                   LEAST_HINTED)
            for arm in HINTED
            if arm in known
        ]  # fmt: skip
    return found


def _least(text: str, got: float, least: float) -> Judgement:
    return Judgement(f"{text}: {got:.2f}x (claimed {least:g}x)", got >= least)
