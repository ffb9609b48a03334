"""Claim: planning, inputs, collecting and events cost at most 1 ms a step at 64 rows, and the
prefix cache at most 0.3 % of the time of work that reuses nothing.

    python -m benchmark.step_cost [--rows 1,64,512] [--model PATH]

The worker samples at once, so that all the rest is measured: microseconds of processor time a
decode step, by part, the least of three rounds. Texts are checked. "ahead" plans a pass while
another one is in flight. The cache's share is that of a real model, the embedded one by default.
"""

from __future__ import annotations

import gc
from itertools import product

import torch

from benchmark.harness.command import command_parser
from benchmark.models import EMBEDDED
from benchmark.step_cost.measure import decode_cost
from benchmark.step_cost.tree import tree_share


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> None:
    parser = command_parser("benchmark.step_cost", __doc__)
    parser.add_argument("--rows", type=numbers, default=[1, 16, 64, 256, 512])
    parser.add_argument("--contexts", type=numbers, default=[128, 1024, 4096])
    parser.add_argument("--page-sizes", type=numbers, default=[1, 16])
    parser.add_argument("--model", default=str(EMBEDDED), help="folder of a checkpoint")
    options = parser.parse_args()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # as the engine's process does
    names = ("plan", "inputs", "collect", "events", "step", "a row")
    print(f"{'rows':>5} {'context':>8} {'page':>5} {'ahead':>6}", *(f"{n:>8}" for n in names))
    for page, context, rows in product(options.page_sizes, options.contexts, options.rows):
        for ahead in (False, True):
            cost = decode_cost(rows, context, page, ahead)
            parts = (cost.plan, cost.inputs, cost.collect, cost.events, cost.step, cost.step / rows)
            word = "yes" if ahead else "no"
            print(f"{rows:>5} {context:>8} {page:>5} {word:>6}", *(f"{p:>8.1f}" for p in parts))
    tree, seconds = tree_share(options.model)
    print(f"tree code without reuse: {tree * 1e3:.2f} ms of {seconds:.2f} s, {tree / seconds:.3%}")


if __name__ == "__main__":
    main()
