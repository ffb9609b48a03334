"""Speeds: the tables that compare contenders with ours, normalised as in Figs. 5 and 6, and the
targets."""

from __future__ import annotations

from benchmark.harness.page import table
from benchmark.paper import published
from benchmark.paper.claims import PARALLEL
from benchmark.paper.figures import NO_CACHE_PEERS, OURS, Figures
from benchmark.peers.figures import Middle

SPEED, IMAGES = "speed", "images"
ALIKE = 0.05  # lengths of generated texts that differ by no more


def times(ratio: Middle | None) -> str:
    """A median ratio with its spread, where there is more than one round."""
    if ratio is None:
        return "-"
    if ratio.least == ratio.most:
        return f"{ratio.value:.2f}"
    return f"{ratio.value:.2f} ({ratio.least:.2f}-{ratio.most:.2f})"


def throughput(figures: Figures) -> str:
    """Items a second of every side, ours = 1; the median over rounds, then the least and most."""
    rows = _table(figures, "throughput", "rate")
    return table(rows) if rows else ""


def latency(figures: Figures) -> str:
    """Mean seconds of an item alone, ours = 1; lower is better."""
    rows = _table(figures, "latency", "latency")
    return table(rows) if rows else ""


def _table(figures: Figures, mode: str, of: str) -> list[list[str]]:
    claims = figures.claims(SPEED, mode)
    peers = [side for side in figures.sides(SPEED, mode=mode) if side != OURS]
    rows = [["", "items", OURS, *peers]]
    for claim in claims:
        ours = figures.runs(SPEED, claim, mode, OURS)
        if ours is None:
            continue
        value = figures.value(SPEED, claim, mode, OURS, of)
        assert value is not None
        told = f"1 = {value.value:.3g}/s" if of == "rate" else f"1 = {value.value:.3g} s"
        cells = [_cell(figures, claim, mode, side, of) for side in peers]
        rows.append([title(figures, claim), str(ours["items"]), told, *cells])
    return rows if len(rows) > 1 else []


def _cell(figures: Figures, claim: str, mode: str, side: str, of: str) -> str:
    text = times(figures.ratio(SPEED, claim, mode, side, OURS, of))
    fewer = _fewer(figures, SPEED, claim, mode, side)
    return text + fewer + _longer(figures, SPEED, claim, mode, side)


def _fewer(figures: Figures, kind: str, claim: str, mode: str, side: str) -> str:
    """Note of the number of items that a side ran, where that is less than ours."""
    ours, found = (figures.runs(kind, claim, mode, who) for who in (OURS, side))
    if ours and found and found["items"] < ours["items"]:
        return f", {found['items']} items"
    return ""


def _longer(figures: Figures, kind: str, claim: str, mode: str, side: str) -> str:
    """A note where a side's texts are longer or shorter than ours: it then did other work."""
    ours, found = (figures.runs(kind, claim, mode, who) for who in (OURS, side))
    if not ours or not found or ours["items"] != found["items"]:
        return ""
    mine, theirs = (runs["completion_tokens"] or 0 for runs in (ours, found))
    if not mine or not theirs or abs(theirs / mine - 1) <= ALIKE:
        return ""
    return f", {theirs / mine:.2g}x the tokens"


def title(figures: Figures, claim: str) -> str:
    """Title that the claim gives itself."""
    return next((r["title"] for r in figures.of("claim") if r["claim"] == claim), claim)


def targets(figures: Figures) -> str:
    """Each promise, what was measured, and whether it was kept."""
    if not figures.of("claim"):
        return ""
    rows = [["target", "measured (least-most)", "nearest", ""]]
    # A claim tells of itself in every part that it has.
    for record in {r["claim"]: r for r in figures.of("claim")}.values():
        if record["speedup"] is None:
            continue
        what = f"{record['title']}: {record['speedup']:g}x the best peer's throughput"
        kind = SPEED if figures.claims(SPEED).count(record["claim"]) else IMAGES
        rows.append([what, *_held(figures, kind, record["claim"], record["speedup"])])
    rows.append(_most(figures))
    rows.append(_soonest(figures))
    rows.append(_hits(figures))
    return table(rows)


def _held(figures: Figures, kind: str, claim: str, wanted: float) -> list[str]:
    best = figures.best_peer(kind, claim)
    if best is None:
        return ["not measured", "-", "-"]
    peer, gain = best
    of = kind, claim, "throughput", peer
    told = _fewer(figures, *of) + _longer(figures, *of)
    found = figures.runs(*of)
    if found is not None and len(found["rounds"]) < 2:
        told += ", one round"
    return [f"{times(gain)}x", peer + told, _verdict(gain.value >= wanted)]


def _verdict(reached: bool) -> str:
    return "reached" if reached else "**missed**"


def _most(figures: Figures) -> list[str]:
    """The claim where ours is furthest ahead of the best peer that has no prefix cache."""
    what = f"Up to {published.THROUGHPUT:g}x the throughput of a peer without prefix cache"
    found = [
        (claim, best)
        for claim in figures.claims(SPEED)
        if (best := figures.best_peer(SPEED, claim, among=NO_CACHE_PEERS))
        and _alike(figures, claim, "throughput", best[0])
    ]
    if not found:
        return [what, "not measured", "-", "-"]
    claim, (peer, gain) = max(found, key=lambda pair: pair[1][1].value)
    where = f"{peer}, {title(figures, claim)}"
    return [what, f"{times(gain)}x", where, _verdict(gain.value >= published.THROUGHPUT)]


def _alike(figures: Figures, claim: str, mode: str, peer: str) -> bool:
    """Whether both did the same: on fewer items a peer has less to batch and to share, and longer
    texts are more work."""
    unlike = _fewer, _longer
    return claim not in PARALLEL and not any(of(figures, SPEED, claim, mode, peer) for of in unlike)


def _soonest(figures: Figures) -> list[str]:
    """The same for latency; the paper's figure is no promise of ours."""
    what = f"The paper: up to {published.LATENCY:g}x lower latency"
    found = [
        (claim, best)
        for claim in figures.claims(SPEED, "latency")
        if (best := figures.best_peer(SPEED, claim, "latency", NO_CACHE_PEERS))
        and _alike(figures, claim, "latency", best[0])
    ]
    if not found:
        return [what, "not measured", "-", "-"]
    claim, (peer, gain) = max(found, key=lambda pair: pair[1][1].value)
    where = f"{peer}, {title(figures, claim)}"
    return [what, f"{times(gain)}x", where, _verdict(gain.value >= published.LATENCY)]


def _hits(figures: Figures) -> list[str]:
    what = f"Hit rate at least {100 * published.OF_OPTIMAL:.0f} % of the optimal, on average"
    mean, less = mean_of_optimal(figures), mean_of_optimal(figures, plenty=False)
    if mean is None:
        return [what, "not measured", "-", "-"]
    told = f"{100 * mean:.1f} %"
    if less is not None:  # reported, and not held to an optimum that forgets nothing
        told += f"; {100 * less:.1f} % with half the memory"
    return [what, told, "-", _verdict(mean >= published.OF_OPTIMAL)]


def mean_of_optimal(figures: Figures, plenty: bool = True) -> float | None:
    """Achieved over optimal hit rate, the mean over the claims that have any reuse: with memory
    for everything, or with less."""
    shares = [record["share"] for record in figures.hits(plenty) if record["optimal"]]
    return sum(shares) / len(shares) if shares else None


def images(figures: Figures) -> str:
    """Table 2: questions about images a second."""
    ours, theirs = published.IMAGES
    rows = [["", "items a second", "times ours"]]
    for claim in figures.claims(IMAGES):
        for side in figures.sides(IMAGES, claim, "throughput"):
            value = figures.value(IMAGES, claim, "throughput", side)
            assert value is not None
            ratio = figures.ratio(IMAGES, claim, "throughput", side)
            rows.append([side, f"{value.value:.3g}", times(ratio)])
    if len(rows) == 1:
        return ""
    paper = (
        f"The paper, LLaVA-v1.5-7B: {ours:g} images a second against {theirs:g} of its authors' "
        f"implementation, {ours / theirs:.1f} times as many."
    )
    return f"{table(rows)}\n\n{paper}"
