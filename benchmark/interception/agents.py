"""Claim: where six times as many programs are alive as the KV memory holds, the server's gate for
programs (``srt/interception/gate``) answers at least four times as many tokens a second in time as
first come, first served does without one.

    python -m benchmark.interception.agents [--loads 0.75,1.5,3,6] [--arms fcfs,fcfs+gate]
        [--trace FILE]

The real engine in virtual time, as in ``python -m benchmark.interception``, under programs of
today's agents: generated ones, or those of a Mooncake trace. Every answer is checked to have its
tokens. A load of 3 is as many clients as have three times the KV that the arm's memory holds; each
begins a program when its last one has ended. Arms:

    fcfs, radix   the prefix cache on the device; requests first come, first served, or those with
                  the longest cached prefix first
    line          as radix, and a program's turns queue as if they had come with its first
    tiers         as line, with host memory
    priced, eager, ttl    the same, and programs are parked between their turns
    ... + gate    a gate before the engine, at the client

Columns:

    done/min    programs ended a minute
    goodput     tokens a second of the turns whose first token came within the target
    all         tokens a second of all answered turns
    p50, p90    seconds from the moment a turn was due to its first token; longest: the most
    prefill     prompt tokens computed a second
    live        KV of the programs that have begun, as a multiple of the arm's memory
    hits        share of the prompts' tokens that were cached; inf., Belady: at most, by an infinite
                cache and by the best rule in a cache of the arm's size (``bounds``)
    host        of the tokens that the device did not have, the share that host memory had
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sglang.srt.interception.gate import ProgramGate

from benchmark.harness.command import command_parser
from benchmark.interception.__main__ import names
from benchmark.interception.agent_load import (
    BLOCK,
    SCALE,
    Program,
    generated,
    mean_live,
    read_trace,
)
from benchmark.interception.agent_run import PAGE, AgentOutcome, AgentRun, GatedRun
from benchmark.interception.bounds import belady, infinite
from benchmark.interception.virtual_engine import ARMS, Arm, Machine

HOST = 96_000  # tokens of host memory of arm ``tiers``
BASES = {
    "fcfs": Arm("fcfs"), "radix": ARMS["radix"], "line": ARMS["radix + line"],
    "tiers": ARMS["tiers"], "priced": ARMS["priced"], "eager": ARMS["eager"],
    "ttl": replace(ARMS["priced"], parking="ttl"),
}  # fmt: skip
GATE = "+gate"
CHOICES = [name + gate for name in BASES for gate in ("", GATE)]
# The gate's: share of the memory, seconds of a quantum, seconds in which a call's weight halves.
SHARE, QUANTUM, HALF_LIFE = 0.95, 20.0, 2.0
CLAIMED_LOAD, CLAIMED_SECONDS, CLAIM = 6.0, 240.0, 4.0
COLUMNS = (
    "done/min", "goodput", "all", "p50", "p90", "longest", "prefill", "live", "hits", "inf.",
    "Belady", "host",
)  # fmt: skip


@dataclass(frozen=True)
class Figures:
    """A row of the table; see the columns above."""

    finished: float
    goodput: float
    answered: float
    p50: float
    p90: float
    longest: float
    prefill: float
    live: float
    hits: float
    infinite: float
    belady: float
    host: float

    def __str__(self) -> str:
        return (
            f"{self.finished:>8.1f} {self.goodput:>8.1f} {self.answered:>8.1f} {self.p50:>8.2f} "
            f"{self.p90:>8.2f} {self.longest:>8.1f} {self.prefill:>8.0f} {self.live:>8.2f} "
            f"{self.hits:>8.3f} {self.infinite:>8.3f} {self.belady:>8.3f} "
            f"{self.host:>8.3f}"
        )


def memory(name: str, machine: Machine) -> int:
    """Return the tokens of KV that an arm keeps."""
    return machine.capacity + (machine.host if BASES[name.removesuffix(GATE)].host else 0)


def play(
    name: str, machine: Machine, programs: Sequence[Program], clients: int, seconds: float
) -> AgentOutcome:
    """Run one arm."""
    arm = BASES[name.removesuffix(GATE)]
    if name.endswith(GATE):
        gate = ProgramGate(SHARE * memory(name, machine), QUANTUM, HALF_LIFE, PAGE)
        return GatedRun(arm, machine, programs, clients, gate).run(seconds)
    return AgentRun(arm, machine, programs, clients).run(seconds)


def figures(outcome: AgentOutcome, capacity: int, target: float) -> Figures:
    """Make the row of an outcome in ``capacity`` tokens of memory."""
    pages = max(sum(reading.prompt for reading in outcome.readings), 1)
    return Figures(
        finished=60 * outcome.finished / outcome.seconds,
        goodput=outcome.goodput(target),
        answered=outcome.goodput(float("inf")),
        p50=outcome.ttft(0.5),
        p90=outcome.ttft(0.9),
        longest=outcome.ttft(1.0),
        prefill=outcome.prefill / outcome.seconds,
        live=outcome.live / capacity,
        hits=outcome.hit_rate,
        infinite=infinite(outcome.readings) / pages,
        belady=belady(outcome.readings, capacity // PAGE) / pages,
        host=outcome.external,
    )


def loads(text: str) -> list[float]:
    found = [float(word) for word in text.split(",")]
    if min(found) <= 0:
        raise argparse.ArgumentTypeError(f"a load of {min(found)}; give more than 0")
    return found


def ratios(found: dict[str, Figures]) -> list[tuple[str, float, float]]:
    """Return (arm, goodput, programs ended) of each gated arm over the one without a gate."""
    return [
        (
            name,
            found[name].goodput / max(found[base].goodput, 1e-9),
            found[name].finished / max(found[base].finished, 1e-9),
        )
        for name in found
        if name.endswith(GATE) and (base := name.removesuffix(GATE)) in found
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_parser("benchmark.interception.agents", __doc__, None)
    parser.add_argument("--loads", type=loads, default=[0.75, 1.5, 3.0, 6.0], help="live KV / KV")
    plain = [name for name in CHOICES if not BASES[name.removesuffix(GATE)].host]
    parser.add_argument(
        "--arms", type=names(CHOICES), default=plain,
        help=f"of {', '.join(CHOICES)}",
    )  # fmt: skip
    parser.add_argument("--seconds", type=float, default=CLAIMED_SECONDS, help="virtual, a run")
    parser.add_argument("--target", type=float, default=2.0, help="seconds to a turn's first token")
    parser.add_argument("--host", type=int, default=HOST, help="tokens of host memory, for tiers")
    parser.add_argument("--link", type=float, default=Machine.link, help="tokens copied in a ms")
    parser.add_argument("--scale", type=int, default=SCALE, help="tokens one token stands for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--trace", type=Path, help="JSON lines of a Mooncake trace, in place of "
                        "generated programs; clients play its programs in order")  # fmt: skip
    parser.add_argument("--block", type=int, default=BLOCK, help="tokens of a block of the trace")
    options = parser.parse_args(arguments)
    machine = Machine(host=options.host, link=options.link)
    if options.trace is None:
        programs = generated(1000, options.seed, options.scale)
    else:
        programs = read_trace(options.trace, options.scale, options.block)
    print(f"{'load':>5} {'arm':<11}", *(f"{name:>8}" for name in COLUMNS))
    missed = 0
    for load in options.loads:
        found: dict[str, Figures] = {}
        for name in options.arms:
            capacity = memory(name, machine)
            clients = max(round(load * capacity / mean_live(programs)), 1)
            outcome = play(name, machine, programs, clients, options.seconds)
            found[name] = figures(outcome, capacity, options.target)
            print(f"{load:>5g} {name:<11} {found[name]}", flush=True)
        for name, goodput, ended in ratios(found):
            print(f"{name} / without a gate at {load:g}: goodput {goodput:.2f}x, programs ended "
                  f"{ended:.2f}x")  # fmt: skip
            if name == "fcfs+gate" and load >= CLAIMED_LOAD and options.seconds >= CLAIMED_SECONDS:
                missed += goodput < CLAIM
    if missed:
        print(f"the claim of {CLAIM:g}x is broken")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
