"""Claim: served by application, four applications with long prompts sustain at least 12 times the
rate of no sharing, and a program of 16 files and three reviews ends at least 2.45 times as early as
with large batches alone.

    python -m benchmark.applications [--only gpts,agents,mixed,tail] [--paper-engine]

The engines, schedulers and the router are the real ones; time is virtual (``machines``). The
programs and their lengths are Parrot's (OSDI'24, sections 8.3 to 8.5). Beside each ratio stands the
paper's. ``--paper-engine`` takes the attention of the paper's engine, whose passes take 40 ms with
6,144 tokens of KV.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from benchmark.applications.experiments import (
    Ratio,
    agent_ratios,
    gpt_ratios,
    mixed_ratios,
    tail_ratios,
)
from benchmark.applications.machines import A100, A6000, as_in_paper
from benchmark.harness.command import command_parser

CLAIMED = {"sustained rate over no sharing": 12.0, "16 files: time of 'throughput' over ours": 2.45}


def experiments(paper_engine: bool) -> dict[str, Callable[[], list[Ratio]]]:
    """The experiments by name."""
    small, large = (A6000, A100) if not paper_engine else (as_in_paper(A6000), as_in_paper(A100))
    return {
        "gpts": lambda: gpt_ratios(small),
        "long gpts": lambda: gpt_ratios(small, times=3),
        "agents": lambda: [row for files in (4, 8, 16) for row in agent_ratios(files, large)],
        "mixed": lambda: mixed_ratios(small),
        "tail": tail_ratios,
    }


def main() -> int:
    parser = command_parser("benchmark.applications", __doc__)
    parser.add_argument("--only", default="", help="experiments, separated by commas")
    parser.add_argument(
        "--paper-engine", action="store_true", help="attention of the paper's engine"
    )
    options = parser.parse_args()
    known = experiments(options.paper_engine)
    chosen = options.only.split(",") if options.only else list(known)
    for name in chosen:
        if name not in known:
            parser.error(f"--only has {name!r}; choose from {', '.join(known)}")
    missed = []
    for name in chosen:
        began = time.monotonic()
        print(f"{name}", flush=True)
        rows = known[name]()
        print(f"{'':<58}{'ours':>8}{'paper':>10}")
        print("\n".join(map(str, rows)))
        print(f"  {time.monotonic() - began:.0f} s\n", flush=True)
        missed += [r.name for r in rows if r.value < CLAIMED.get(r.name, 0.0)]
    if missed and not options.paper_engine:
        print(f"missed: {', '.join(missed)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
