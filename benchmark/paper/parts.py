"""Parts: what a run measures, one after the other."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmark.harness.claim import Claim, Scale
from benchmark.harness.records import read
from benchmark.harness.side import Side
from benchmark.paper import claims
from benchmark.paper.desk import Desk
from benchmark.paper.figures import OURS, UNCACHED
from benchmark.paper.plan import Part, Short
from benchmark.paper.rounds import Rounds

CURVE = "tree_of_thought"
AGAIN = "all on again"
"""An ablation of nothing: how far two runs of the same are apart."""


Work = tuple[Sequence[str], float, Callable[..., None]]
"""What a kind of part is measured on (nothing: on no claim), its weight, and how."""


def parts(desk: Desk, only: Sequence[str], works: Mapping[str, Work]) -> list[Part]:
    """Parts of ``works``, by kind, that ``only`` names, by claims, kinds or both; all where it
    names neither.

    Raises ValueError for an unknown name.
    """
    known = [*claims.NAMES, *works]
    if unknown := [word for word in only if word not in known]:
        raise ValueError(f"--only has {unknown[0]!r}; it knows the claims and parts "
                         + " ".join(known))  # fmt: skip
    kinds, names = ([word for word in every if word in only] for every in (works, claims.NAMES))
    found = []
    for kind in kinds or works:
        of, weight, work = works[kind]
        if not of and (kind in kinds or not names):
            found.append(Part(kind, weight, partial(work, desk)))
        found += [
            Part(f"{kind} {name}", weight * _share(kind, name), partial(_on, desk, work, name))
            for name in of if name in (names or of)
        ]  # fmt: skip
    return found


def _share(kind: str, name: str) -> float:
    """Share of the time: parts that a target is measured by get more, the others less."""
    if kind != "speed":
        return 1.0
    return 1.5 if name in claims.PROMISED else 0.5


def _on(desk: Desk, work: Callable[[Desk, Claim, float], None], name: str, until: float) -> None:
    claim = claims.claim(name)
    desk.tell({"kind": "claim", "claim": name, "title": claim.title, "paper": claim.paper,
               "speedup": claim.speedup})  # fmt: skip
    if work is not speed:
        desk.close()  # the contenders have had their turns
    work(desk, claim, until)


def speed(desk: Desk, claim: Claim, until: float) -> None:
    """All contenders in turns, for throughput and then for latency."""
    asked = time.monotonic()
    sides = desk.sides()
    began = time.monotonic()
    until += began - asked  # starting once is not of this claim's time
    first = Rounds(desk, "speed", claim, "throughput", sides)
    left = [first.run(began + 0.65 * (until - began))]
    then = Rounds(desk, "speed", claim, "latency", first.sides)
    _short([*left, then.run(until, first.alone)])


def _short(left: Sequence[str]) -> None:
    if told := "; ".join(filter(None, left)):
        raise Short(told)


def images(desk: Desk, claim: Claim, until: float) -> None:
    """Parallel questions against one after the other, as the paper's baseline answers them."""
    from benchmark.harness.ablations import ABLATIONS, FULL, opened
    from benchmark.image_qa.author import Author

    with ExitStack() as stack:
        sides: list[Side] = []
        for ablation, name in ((FULL, OURS), (ABLATIONS["no cache"], UNCACHED)):
            side = opened(ablation, desk.seeing(), dtype=desk.dtype)
            stack.callback(side.close)
            side.name = name
            sides.append(side)
        author = Author(desk.seeing())
        stack.callback(author.close)
        sides.append(author)
        _short([Rounds(desk, "images", claim, "throughput", sides).run(until)])


def ablations(desk: Desk, claim: Claim, until: float) -> None:
    """Measure our engine with one thing off against itself with all on."""
    from benchmark.harness.ablations import ABLATIONS, FULL
    from benchmark.harness.sameness import concerns
    from benchmark.paper.alone import compared

    chosen = [a for a in ABLATIONS.values() if concerns(a, claim)]
    chosen.insert(1, replace(FULL, name=AGAIN))
    _short([compared(desk, "ablation", claim, chosen, "throughput", until)])


def curve(desk: Desk, claim: Claim, until: float) -> None:
    """Measure our engine with a part of its hits."""
    from benchmark.ablations.measure import RATES
    from benchmark.harness.ablations import partial as part_of_hits
    from benchmark.paper.alone import compared

    ends = {"throughput": (time.monotonic() + until) / 2, "latency": until}
    chosen = [part_of_hits(rate) for rate in RATES]
    _short([compared(desk, "curve", claim, chosen, mode, end) for mode, end in ends.items()])


def answers(desk: Desk, claim: Claim, until: float) -> None:
    """Everything on and everything off, on the model that was trained."""
    from benchmark.harness.ablations import ALL_OFF
    from benchmark.paper.alone import same_answers

    for record in same_answers(desk, claim, [ALL_OFF]):
        desk.tell(record)


def hits(desk: Desk, claim: Claim, until: float) -> None:
    """Achieved and optimal hit rate, with lengths as in the paper."""
    from benchmark.paper.alone import hit_rate

    hit_rate(desk, claim)


def api(desk: Desk, claim: Claim, until: float) -> None:
    """Measure the charge of a service, for which our own server stands, with the trained model."""
    from benchmark.api_speculation.bill import bills

    items = claim.items(Scale(desk.answered), desk.seed)
    desk.tell({"kind": "api", "items": len(items), **bills(items)})


def fsm(desk: Desk, until: float, smaller: Sequence[str] = ()) -> None:
    """Measure the gain of jump-forward and of compiling once: ``benchmark.json_decode``, its own
    limits aside, with the options ``smaller``.

    Raises RuntimeError where its answers differ.
    """
    from benchmark.json_decode.__main__ import main

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.jsonl"
        main(["--no-string", "--parts", "jump", "compile", "--workloads", "character", "city",
              *smaller, "--output-file", str(file)])  # fmt: skip
        if not file.exists():
            raise RuntimeError("json_decode measured nothing: see what it printed")
        rows = read(file)
    for row in rows:
        for what, name in (("jump", "exact / off"), ("compile", "once / each")):
            if name in row["figures"]:
                desk.tell({"kind": "fsm", "what": what, "work": row["row"],
                           "values": row["figures"][name]["values"]})  # fmt: skip


def overhead(desk: Desk, until: float) -> None:
    """Measure the overhead of the radix tree where nothing is reused."""
    from benchmark.step_cost.tree import tree_share

    tree, seconds = tree_share(str(desk.model()))
    desk.tell({"kind": "overhead", "tree": tree, "seconds": seconds})


WORKS: dict[str, Work] = {
    "api": ((claims.PAID,), 1, api),
    "fsm": ((), 2, fsm),
    "overhead": ((), 1, overhead),
    "answers": (claims.NAMES, 1, answers),
    "hits": ((*claims.TEXT, claims.SEEING), 2, hits),
    "speed": (claims.TEXT, 10, speed),
    "images": ((claims.SEEING,), 6, images),
    "ablations": (claims.ABLATED, 6, ablations),
    "curve": ((CURVE,), 8, curve),
}
"""Parts of the whole run, in order. The first ones take a fixed time, seven minutes in all. Later
ones have fewer items and rounds where time is short."""
