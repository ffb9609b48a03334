"""Sections: the tables of the page that compare ours with itself."""

from __future__ import annotations

from benchmark.harness.page import table, wrapped
from benchmark.models import SHAPES
from benchmark.paper import published
from benchmark.paper.figures import Figures
from benchmark.paper.plan import Record
from benchmark.paper.speeds import mean_of_optimal, times, title
from benchmark.peers.figures import Middle

ABLATION, CURVE, FULL = "ablation", "curve", "full"


def machine(figures: Figures) -> str:
    """Origin of all figures: machine, releases, commit, command."""
    parts = [_machine(about) for about in figures.of("machine")]
    releases: dict[str, list[str]] = {}  # sides on the same release are named together
    for record in figures.of("loaded"):
        versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
        releases.setdefault(versions, []).append(record["side"])
    if releases:
        told = [f"- {', '.join(dict.fromkeys(s))}: {v}" for v, s in releases.items()]
        parts.append("\n".join(told))
    out = [f"- Left out: {r['side']}: {r['why']}" for r in figures.of("left out") if not r["claim"]]
    if out:
        parts.append("\n".join(dict.fromkeys(out)))
    return "\n\n".join(parts)


def _machine(about: Record) -> str:
    found = ", ".join(about["instructions"])
    line = (
        f"{about['time'][:10]}, {about['machine']} ({found}), {about['cores']} cores, "
        f"{about['memory_gib']} GiB, load {about['load'][0]} at the beginning, {about['system']}, "
        f"Python {about['python']}, commit {about['commit']}, model {_size(about['model'])}:"
    )
    return f"{wrapped(line)}\n\n    {about['command']}"


def _size(name: str) -> str:
    shape = SHAPES[name]
    parameters = shape.parameters + shape.vocab * shape.hidden  # the head is not tied
    return (
        f"{name} ({parameters / 1e6:.0f} million parameters: {shape.layers} layers of "
        f"{shape.hidden}, {shape.heads} query heads, {shape.kv_heads} key heads)"
    )


def api(figures: Figures) -> str:
    """Input tokens that a user of an API pays, with speculation and without."""
    rows = [["", "calls", "input tokens", "output tokens", "left the form"]]
    words = []
    for record in figures.of("api"):
        for name in ("without", "with"):
            said = (record[name][key] for key in _BILLED)
            rows.append([f"{name} speculation", *map(str, said)])
        same = "all equal" if record["equal"] else "**not equal**"
        words.append(
            f"**{record['fewer_input_tokens']:.2f}** times fewer input tokens for "
            f"{record['items']} pages (the paper: about {published.INPUT_TOKENS:g}); the answers "
            f"are {same}."
        )
    return "\n\n".join([table(rows), *words]) if words else ""


_BILLED = ("calls", "prompt_tokens", "completion_tokens", "left")


def curve(figures: Figures) -> str:
    """Fig. 8(a)(b): what the same work takes where only a share of what matches is used."""
    parts = []
    for claim in figures.claims(CURVE):
        sides = figures.sides(CURVE, claim, "throughput")
        rows = [["", "hit rate", "requests a pass", "items a second", "times as many as none",
                 "first token, alone", "an item, alone"]]  # fmt: skip
        for side in sides:
            seconds = [
                figures.value(CURVE, claim, "latency", side, of)
                for of in ("first_token", "latency")
            ]
            counts = {
                of: figures.value(CURVE, claim, "throughput", side, of)
                for of in ("hit_rate", "batch", "rate")
            }
            hits = counts["hit_rate"]
            rows.append([
                side, f"{100 * hits.value:.0f} %" if hits else "-",
                *(f"{n.value:.3g}" if n else "-" for n in (counts["batch"], counts["rate"])),
                times(figures.ratio(CURVE, claim, "throughput", side, sides[0])),
                *(f"{value.value:.3g} s" if value else "-" for value in seconds),
            ])  # fmt: skip
        parts.append(f"{title(figures, claim)}:\n\n{table(_dense(rows))}")
    return "\n\n".join(parts)


def _dense(rows: list[list[str]]) -> list[list[str]]:
    """Drop the columns that have nothing in any row."""
    kept = [i for i in range(len(rows[0])) if any(row[i] != "-" for row in rows[1:])]
    return [[row[i] for i in kept] for row in rows]


def ablations(figures: Figures) -> str:
    """Fig. 8(c): throughput with one thing off, all on = 1."""
    sides = [side for side in figures.sides(ABLATION) if side != FULL]
    rows = [["", "items", *sides]]
    for claim in figures.claims(ABLATION):
        full = figures.runs(ABLATION, claim, "throughput", FULL)
        cells = [times(figures.ratio(ABLATION, claim, "throughput", side, FULL)) for side in sides]
        rows.append([title(figures, claim), str(full["items"]) if full else "-", *cells])
    return table(rows) if len(rows) > 1 and sides else ""


def overhead(figures: Figures) -> str:
    """Cost of keeping the radix tree where nothing is reused."""
    found = figures.of("overhead")
    if not found:
        return ""
    last = found[-1]
    share = last["tree"] / last["seconds"]
    verdict = "within" if share <= published.OVERHEAD else "**above**"
    return (
        f"{1e3 * last['tree']:.1f} ms of {last['seconds']:.2f} s, **{100 * share:.2f} %**: "
        f"{verdict} the paper's {100 * published.OVERHEAD:.1f} % (0.2 of 74.3 seconds)."
    )


def fsm(figures: Figures) -> str:
    """Jump-forward and compiling once, by work."""
    wanted = {"jump": published.JUMP, "compile": published.COMPILE}
    said = {"jump": "with jump-forward over without",
            "compile": "compiled once a batch over once a request"}  # fmt: skip
    rows = [["", "work", "throughput (least-most)", "the paper"]]
    for record in figures.of("fsm"):
        values = record["values"]
        middle = times(Middle.of(values))
        rows.append([said[record["what"]], record["work"], f"{middle}x",
                     f"{wanted[record['what']]:g}x"])  # fmt: skip
    return table(rows) if len(rows) > 1 else ""


def hits(figures: Figures) -> str:
    """Fig. 13: achieved and optimal hit rates."""
    rows = [["", "prompt tokens", "achieved", "optimal", "of the optimal", "with half the memory"]]
    for record in figures.hits():
        claim = record["claim"]
        less = [r["share"] for r in figures.hits(plenty=False) if r["claim"] == claim]
        rates = [record["achieved"], record["optimal"], record["share"], *less]
        told = [f"{100 * rate:.1f} %" for rate in rates] + ["-"] * (4 - len(rates))
        rows.append([title(figures, claim), f"{record['prompt']:g}", *told])
    mean = mean_of_optimal(figures)
    if mean is None:
        return ""
    low, high = (100 * rate for rate in published.HITS)
    half = mean_of_optimal(figures, plenty=False)
    also = f", **{100 * half:.1f} %** with half the memory" if half is not None else ""
    line = (
        f"Mean over the workloads: **{100 * mean:.1f} %** of the optimal{also}; the paper: "
        f"{100 * published.OF_OPTIMAL:.0f} %, with hit rates from {low:.0f} to {high:.0f} %."
    )
    return f"{table(rows)}\n\n{wrapped(line)}"


def answers(figures: Figures) -> str:
    """Item by item: everything on against everything off, on the model that was trained."""
    found = figures.of("answers")
    sides = list(dict.fromkeys(record["side"] for record in found))
    rows = [["", "items", "right", *(f"equal, {side}" for side in sides)]]
    for claim in dict.fromkeys(record["claim"] for record in found):
        told = {record["side"]: record for record in found if record["claim"] == claim}
        first = next(iter(told.values()))
        right = "-" if first["right"] is None else f"{100 * first['right']:.0f} %"
        cells = [f"{told[s]['equal']} of {told[s]['items']}" if s in told else "-" for s in sides]
        rows.append([title(figures, claim), str(first["items"]), right, *cells])
    return table(rows) if len(rows) > 1 else ""


def gaps(figures: Figures) -> str:
    """Parts that were not measured, or not wholly, and the reasons."""
    lines = [f"- {r['part']}: {r['state']}: {r['why']}" for r in figures.unfinished()]
    lines += [f"- {r['claim']}: without {r['side']}: {r['why']}"
              for r in figures.of("left out") if r["claim"]]  # fmt: skip
    if not figures.of("part"):
        return ""
    return "\n".join(dict.fromkeys(lines)) or "Nothing: every part was measured whole."
