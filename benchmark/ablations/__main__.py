"""``python -m benchmark.ablations``: what is lost with one part of the engine or the language off.

Claims of the paper with each part off in turn (Fig. 8(c)), over the curve of forced hit rates (Fig.
8(a)(b)), and their hit rates against the optimum (Fig. 13). Throughput is relative to everything
on, in the same round: below 1 the part is worth having; latency likewise, above 1. With ``--model
embedded``, in float32, no ablation may change an answer.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmark.ablations.measure import RATES, Record, hit_rate_curve, hit_rates, measure
from benchmark.ablations.rounds import Size
from benchmark.harness.ablations import ABLATIONS
from benchmark.harness.claim import Scale
from benchmark.harness.command import command_parser
from benchmark.harness.machine import about
from benchmark.harness.measure import MODES
from benchmark.harness.records import append
from benchmark.harness.text_model import checkpoint
from benchmark.models import EMBEDDED, SHAPES
from benchmark.paper.claims import ABLATED, APART, NAMES, claim

PARTS = ("ablations", "curve", "hits")
CURVE = "tree_of_thought"


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 1 where an ablation changes an answer of the embedded model."""
    options = _parser().parse_args(argv)
    model = EMBEDDED if options.model == "embedded" else Path(options.model)
    if options.model in SHAPES:
        model = checkpoint(options.model)
    scale = Scale(options.items, options.long)
    size = Size(model, scale, options.memory, options.seed)

    def tell(record: Record) -> None:
        print(told(record), flush=True)
        if options.output_file:
            append(options.output_file, {**record, **about(options)})

    chosen = [claim(name) for name in options.claims]
    same = True
    if "ablations" in options.parts:
        parts = [ABLATIONS[name] for name in options.ablations]
        found = measure(chosen, parts, size, options.rounds, tell, options.modes)
        same = model != EMBEDDED or all(record["same answers"] for record in found)
    if "curve" in options.parts:
        hit_rate_curve(claim(CURVE), options.rates, size, options.rounds, tell, options.modes)
    if "hits" in options.parts:
        hit_rates(chosen, size, tell)
    return 0 if same else 1


def told(record: Record) -> str:
    """A record in one line."""
    head = f"{record['claim']}, {record['ablation']}, {record['mode']}: "
    parts = [f"{median(record['rate']):.2f} items/s, {median(record['latency']):.3f} s"]
    if "relative" in record:
        values = record["relative"]
        spread = f"({min(values):.2f}-{max(values):.2f})"
        cpu = f"{median(record['relative cpu']):.2f} times its CPU"
        parts.append(f"{median(values):.2f} {spread} of full, {cpu}")
    if record["kind"] == "curve":
        parts.append(f"first token {median(record['first_token']):.3f} s")
    hits = f"hits {100 * record['achieved']:.1f} %, optimal {100 * record['optimal']:.1f} %"
    parts += [hits, f"{record['batch']:.1f} requests a pass"]
    if record["tokens"]:
        parts.append(f"{record['tokens']} tokens of memory, {record['evicted']:.0f} evicted")
    if not record.get("same answers", True):
        parts.append("other answers")
    if record["retractions"]:
        parts.append(f"{record['retractions']:.0f} retractions")
    return head + ", ".join(parts)


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "benchmark.ablations", __doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    names = [name for name in NAMES if name not in APART]
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what is measured")
    add("--claims", nargs="+", choices=names, default=list(ABLATED), help="workloads")
    add("--ablations", nargs="+", choices=list(ABLATIONS), default=list(ABLATIONS),
        help="what is switched off")  # fmt: skip
    add("--rates", nargs="+", type=float, default=list(RATES), help="of the curve, 0 to 1")
    add("--model", default="S",
        help=f"{', '.join(SHAPES)}: random weights; 'embedded'; or a checkpoint")  # fmt: skip
    add("--items", type=int, default=8, help="program instances of a claim")
    add("--long", action="store_true", help="lengths as in the paper")
    add("--memory", type=float, default=0.5,
        help="KV tokens, as a share of what all items leave in the cache")  # fmt: skip
    add("--rounds", type=int, default=2, help="runs of each")
    add("--modes", nargs="+", choices=MODES, default=list(MODES), help="how items are run")
    add("--seed", type=int, default=0, help="of the items and their order")
    add("--output-file", default="", help="append a line of JSON a record")
    return parser


if __name__ == "__main__":
    sys.exit(main())
