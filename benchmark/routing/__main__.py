"""Claim: at four engines the router's hit rate is at least 95 % of that of one engine with the
memory of all, and resumed programs of agents move in at most 5 % of the cases.

    python -m benchmark.routing [--tables policies,agents,scale,faults,choice] [--quick]

The router and the engines' radix trees are the real ones; time is virtual, and the engines' speed
is an assumption (``served_engine``). Means over the seeds; ``one engine`` has the memory and the
speed of all. Columns:

    hit         share of the prompts' tokens that were cached
    p50, p95    milliseconds to the first token
    tokens/s    an engine, prompts and answers
    computed    tokens of a prompt, mean
    moved       share of the later requests of a conversation that went to another engine
    us          of processor time of a choice, mean
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchmark.harness.command import command_parser
from benchmark.harness.machine import heading
from benchmark.routing.choice_cost import choice_cost
from benchmark.routing.figures import ONE, Means, Run, Scope, means, run_of

WORDS = (
    ONE, "predicted", "product", "cache-aware", "affinity", "least-load", "round-robin", "random",
)  # fmt: skip
TABLES = ("policies", "agents", "scale", "faults", "choice")
HITS, MOVED = 0.95, 0.05  # claimed
HEADS = ("hit", "p50", "p95", "tokens/s", "computed", "moved", "us")


def shown(title: str, names: Sequence[str], runs: Sequence[Run], scope: Scope) -> list[Means]:
    """Print a table while its rows come."""
    print(f"\n{title}\n{'':34}", *(f"{head:>9}" for head in HEADS))
    found = []
    for name, got in zip(names, means(runs, scope)):
        found.append(got)
        row = (f"{got.hit:.3f}", f"{got.p50 * 1e3:.0f}", f"{got.p95 * 1e3:.0f}",
               f"{got.throughput:.0f}", f"{got.work:.0f}", f"{got.moved:.3f}",
               f"{got.choice_us:.0f}")  # fmt: skip
        print(f"{name:34}", *(f"{cell:>9}" for cell in row), flush=True)
    return found


def policies(scope: Scope, rates: Iterable[float]) -> bool:
    """Print all policies at four engines. Returns whether the claim holds at each rate."""
    held = True
    for rate in rates:
        runs = [run_of(word, 4).at(rate) for word in WORDS]
        title = f"chats, 4 engines, {rate:g} requests a second an engine"
        one, ours, *_ = shown(title, WORDS, runs, scope)
        held = held and ours.hit >= HITS * one.hit
    return held


def agents(scope: Scope, loads: Iterable[float]) -> bool:
    """Print programs of agents at four engines. Returns whether the claim holds."""
    held = True
    for load in loads:
        arms = {
            ONE: run_of(ONE, 4), "predicted, home named": run_of("predicted", 4, keys=True,
            homes=True), "predicted, key": run_of("predicted", 4, keys=True),
        } | {word: run_of(word, 4) for word in WORDS[1:]}  # fmt: skip
        runs = [replace(run, load=load) for run in arms.values()]
        title = f"agents, 4 engines, live KV {load:g} of the memory"
        _, ours, *_ = shown(title, list(arms), runs, scope)
        held = held and ours.moved <= MOVED
    return held


def faults_table(scope: Scope) -> None:
    """Print hit rate and p95 in the 20 s before, in and after each fault."""
    print("\nfaults: hit rate, p95 in ms; before, meanwhile, after")
    for word in ("engine lost", "engine slow", "partition", "elastic"):
        for policy in ("predicted", "least-load"):
            (got,) = means([replace(run_of(policy, 4), rate=8.0, fault=word)], scope)
            cells = (f"{hit:.3f} {p95 * 1e3:6.0f}" for hit, p95 in got.spans)
            print(f"{word:16} {policy:12}", *cells, sep="   ", flush=True)
    (got,) = means([replace(run_of("predicted", 4, fronts=3), rate=8.0,
                            fault="router restarted")], scope)  # fmt: skip
    print("one router of three restarted at 40 s: its hit rate and that of another, from 30 s on")
    pairs = zip(got.spans[::2], got.spans[1::2])
    print("  ".join(f"{first[0]:.3f}/{second[0]:.3f}" for first, second in pairs))
    runs = {
        f"{fronts} routers, reports {delay:g} s late": run_of(
            "predicted", 4, fronts=fronts, delay=delay, stored=fronts > 1
        ).at(10.0)
        for fronts in (1, 3)
        for delay in (0.0, 5.0, 30.0, float("inf"))
    }
    shown("stale trees, 10 requests a second an engine", list(runs), list(runs.values()), scope)


def choices(requests: int) -> None:
    """Print the processor time of the router alone."""
    print("\nprocessor time in us: a choice, median and p99; a request's other calls; a choice for"
          " 131,072 tokens, and the hashes of it")  # fmt: skip
    for engines in (4, 100, 1000):
        cost = choice_cost(engines, requests)
        cells = (cost.median, cost.p99, cost.others, cost.long, cost.hashes)
        print(f"{engines:5} engines", *(f"{cell:8.0f}" for cell in cells), flush=True)


def words(text: str) -> list[str]:
    found = text.split(",")
    unknown = set(found) - set(TABLES)
    if unknown:
        raise argparse.ArgumentTypeError(f"{sorted(unknown)[0]} is none of {', '.join(TABLES)}")
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser("benchmark.routing", __doc__, None)
    parser.add_argument("--tables", type=words, default=list(TABLES), help=", ".join(TABLES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="small runs that decide nothing")
    options = parser.parse_args(arguments)
    print(heading())
    scope = Scope(options.seeds, processes=options.processes)
    if options.quick:
        scope = Scope(1, 20.0, 8.0)
    held = True
    if "policies" in options.tables:
        held = policies(scope, (6.0,) if options.quick else (2.0, 6.0, 10.0, 12.0))
    if "agents" in options.tables:
        held = agents(scope, (0.5,) if options.quick else (0.5, 0.75, 1.0)) and held
    if "scale" in options.tables:
        sizes = (4, 8) if options.quick else (4, 16, 64, 256, 1000)
        small = replace(scope, seconds=min(scope.seconds, 24.0), warm=8.0)
        runs = [run_of("predicted", size).at(10.0) for size in sizes]
        names = [f"{size} engines" for size in sizes]
        shown("predicted, 10 requests a second an engine", names, runs, small)
    if "faults" in options.tables:
        faults_table(replace(scope, seconds=100.0))
    if "choice" in options.tables:
        choices(200 if options.quick else 20_000)
    if not held and not options.quick:
        print("\na claim is broken")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
