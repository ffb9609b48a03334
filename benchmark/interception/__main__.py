"""Claim: with KV in host memory, and what saves least giving way first, programs that call tools
finish at least 2.2 times as often as where their KV is discarded, 1.5 times as often as with the
radix cache alone, 1.3 times as often as where it is preserved, and no less often than with
InferCept's min-waste, at 6 sessions a second. The other claims are in ``claims``.

    python -m benchmark.interception [--rates 2,4,6] [--arms discard,radix,priced] [--seeds 3]
        [--workloads mixed,qa,chat] [--lost 0.1] [--host 100000] [--json FILE] [--plot FILE]
    python -m benchmark.interception --breakdown [--plot FILE]
    python -m benchmark.interception --report FILE [--plot FILE]

The engine is the real one; time is virtual. Its worker computes nothing: it says how long a pass
and its copies would take (InferCept's fit for GPT-J 6B on an A100). The sessions are those of
InferCept's Table 1, mixed or of one workload. Every generation is checked to have its tokens. Means
over the seeds, with the least and the most:

    done/s      sessions finished a second
    p50, p90    normalised latency without the calls, ms a generated token
    first       median ms to a session's first token
    again       tokens computed again, a finished session
    waste       memory times time that was withheld for waiting calls, or held while tokens were
                computed again, as a share of all
    moved       tokens copied to and from host memory, a finished session
    stall       time of copies beyond their passes, as a share of the passes' time
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmark.harness.command import command_parser
from benchmark.interception.claims import CLAIMED_SECONDS, judged
from benchmark.interception.plots import draw_arms, draw_steps
from benchmark.interception.records import (
    MIXED,
    Point,
    Record,
    append,
    grouped,
    heading,
    read,
    record,
    row,
)
from benchmark.interception.session_run import Run
from benchmark.interception.sessions import WORKLOADS, sessions
from benchmark.interception.virtual_engine import ARMS, CLOSES, EVERY_ARM, STEPS, Machine

CHOICES = [*ARMS, *CLOSES, *(step for step in STEPS if step not in ARMS)]


def names(known: Sequence[str]) -> Callable[[str], list[str]]:
    """An argument type: several of the known names, separated by commas."""

    def read_names(text: str) -> list[str]:
        found = text.split(",")
        for name in found:
            if name not in known:
                raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(known)}")
        return found

    return read_names


def rates(text: str) -> list[float]:
    found = [float(word) for word in text.split(",")]
    if min(found) <= 0:
        raise argparse.ArgumentTypeError(f"{min(found)} sessions a second; give more than 0")
    return found


def share(text: str) -> float:
    found = float(text)
    if not 0 <= found < 1:
        raise argparse.ArgumentTypeError(f"a share of {found}; give at least 0 and less than 1")
    return found


def seeds(text: str) -> int:
    found = int(text)
    if found < 1:
        raise argparse.ArgumentTypeError(f"{found} seeds; give at least 1")
    return found


def measured(options: argparse.Namespace) -> Iterator[list[Record]]:
    """Run the arms. Yields the records of all seeds, point by point."""
    for workload in options.workloads:
        kinds = list(WORKLOADS) if workload == MIXED else [workload]
        for rate in options.rates:
            for arm in options.arms:
                point, found = Point(workload, rate, arm, options.lost), []
                for seed in range(options.seeds):
                    played = sessions(rate, options.seconds, seed, kinds, options.lost)
                    run = Run(EVERY_ARM[arm], Machine(host=options.host), played)
                    outcome = run.run(options.seconds)
                    found.append(record(point, seed, options.seconds, outcome))
                    if options.json is not None:
                        append(options.json, found[-1])
                yield found


def parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_parser("benchmark.interception", __doc__, None)
    add = parser.add_argument
    add("--rates", type=rates, help="sessions a second; 4,6 by default, 2,4 of the breakdown")
    add("--arms", type=names(CHOICES), help=f"of {', '.join(CHOICES)}")
    add("--workloads", type=names([MIXED, *WORKLOADS]), default=[MIXED],
        help="one after the other; mixed: all at once")  # fmt: skip
    add("--seconds", type=float, default=CLAIMED_SECONDS, help="virtual, a run")
    add("--seeds", type=seeds, default=1)
    add("--host", type=int, default=Machine.host, help="tokens of host memory")
    add("--lost", type=share, default=0.0, help="share of the sessions whose last call never "
        "returns; arm 'priced closes' closes their contexts")  # fmt: skip
    add("--breakdown", action="store_true", help="InferCept's Figure 3: one technique after the "
        "other, then those of the default policy")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="append one JSON line a run")
    add("--plot", type=Path, metavar="FILE", help="draw an SVG or PNG; needs matplotlib")
    add("--report", type=Path, metavar="FILE", help="take the runs of a file of --json")
    options = parser.parse_args(arguments)
    if options.rates is None:
        options.rates = [2.0, 4.0] if options.breakdown else [4.0, 6.0]
    if options.arms is None:
        options.arms = list(STEPS if options.breakdown else ARMS)
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parsed(arguments)
    if options.report is None:
        points = measured(options)
    else:
        points = iter(grouped(read(options.report)).values())
    print(heading())
    found: list[Record] = []
    for records in points:
        print(row(records), flush=True)
        found += records
    groups = grouped(found)
    if options.plot is not None:
        arms = [arm for arm in options.arms if any(point.arm == arm for point in groups)]
        (draw_steps if options.breakdown else draw_arms)(groups, arms, options.plot)
    claims = judged(groups)
    for claim in claims:
        print(claim.text if claim.kept else f"MISSED {claim.text}")
    return 0 if all(claim.kept for claim in claims) else 1


if __name__ == "__main__":
    sys.exit(main())
