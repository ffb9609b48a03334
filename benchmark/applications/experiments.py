"""Experiments: Parrot's sections 8.3 to 8.5 in virtual time, and orders on a heavy tail.

Every arm runs the same programs on the same machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from sglang.srt.commands.bench.stats import percentile

from benchmark.applications.cluster import Cluster, ProgramRun, Setting
from benchmark.applications.machines import A100, A6000, ReadingMachine
from benchmark.applications.workloads import Program, gpts, heavy_tail, mixed, multi_agent

BOUND_MS = 60.0  # normalised latency of a sustained rate
RATES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
WARM, SECONDS = 5.0, 12.0  # arrivals last SECONDS; requests before WARM are not counted

OURS = Setting()
CLIENT = Setting(share=False, routing="least-load", server=False, order="fcfs", line=False)
LATENCY, THROUGHPUT = replace(CLIENT, hints="calls"), replace(CLIENT, hints="none")
SHARING = replace(OURS, hints="none")  # section 8.3 deduces no objectives (the paper's Table 2)
GPT_ARMS = {
    "no sharing": THROUGHPUT,
    "no affinity": replace(SHARING, routing="least-load"),
    "prefix read by each row": replace(SHARING, once=False),
    "ours": SHARING,
}
AGENT_ARMS = {
    "latency": LATENCY,
    "throughput": THROUGHPUT,
    "ours": OURS,
    "ours without sharing": replace(OURS, share=False),
    "ours, prefix read by each row": replace(OURS, once=False),
    "ours without deduction": replace(OURS, hints="calls"),
    "ours, loop in the client": replace(OURS, server=False, line=False),
}
MIXED_ARMS = {
    "latency": replace(LATENCY, share=True),
    "throughput": replace(THROUGHPUT, share=True),
    "ours": OURS,
    "ours without placement": replace(OURS, routing="least-load"),
    "ours without targets": replace(OURS, hints="none"),
}
SMALL = replace(A100, capacity=20_000)  # memory for some ten programs
TAIL_ARMS = {
    order: replace(OURS, order=order, hints="programs", routing="least-load")
    for order in ("lpm", "app", "attained")
}


@dataclass(frozen=True)
class Ratio:
    """A ratio of two arms, and the paper's.

    Attributes:
        paper: 0 where the paper has none.
    """

    name: str
    value: float
    paper: float = 0.0

    def __str__(self) -> str:
        paper = f"{self.paper:6.2f}" if self.paper else "     -"
        return f"{self.name:<58}{self.value:8.2f}{paper:>10}"


def mean(values: Iterable[float]) -> float:
    """The mean, NaN of none."""
    found = list(values)
    return sum(found) / len(found) if found else float("nan")


def sustained(setting: Setting, machine: ReadingMachine, times: int) -> float:
    """The greatest rate, requests a second of four engines, up to which the mean normalised
    latency stays below ``BOUND_MS``; between two rates by a straight line."""
    rate, latency = 0.0, 0.0
    for after in RATES:
        programs = gpts(after, SECONDS, times=times)
        runs = Cluster(setting, machine, 4, programs).run(until=4 * SECONDS)
        late = [run for run in runs if run.program.arrival >= WARM]
        now = mean(run.normalised_ms if run.ended else 10 * BOUND_MS for run in late)
        if now > BOUND_MS:
            return rate + (after - rate) * (BOUND_MS - latency) / (now - latency) if rate else after
        rate, latency = after, now
    return rate


def gpt_ratios(machine: ReadingMachine = A6000, times: int = 1) -> list[Ratio]:
    """Section 8.3: sustained rates of four applications with long prompts."""
    rates = {name: sustained(setting, machine, times) for name, setting in GPT_ARMS.items()}
    for name, rate in rates.items():
        print(f"  {name:<32}{rate:8.1f} requests/s", flush=True)
    ours = rates["ours"]
    return [
        Ratio("sustained rate over no sharing", ours / rates["no sharing"], 12.0),
        Ratio("sustained rate over no affinity", ours / rates["no affinity"], 3.0),
        Ratio("sustained rate over reading by row", ours / rates["prefix read by each row"], 2.4),
    ]


def agent_ratios(files: int, machine: ReadingMachine = A100) -> list[Ratio]:
    """Section 8.4: a multi-agent program on one engine."""
    seconds: dict[str, float] = {}
    for name, setting in AGENT_ARMS.items():
        cluster = Cluster(setting, machine, 1, [multi_agent(files)])
        seconds[name] = cluster.run()[0].seconds
        print(f"  {name:<32}{seconds[name]:8.1f} s, {cluster.peak:6d} tokens of KV", flush=True)
    papers = {"latency": 11.7, "throughput": 2.45, "ours without sharing": 2.35,
              "ours, prefix read by each row": 1.2}  # fmt: skip
    return [
        Ratio(f"{files} files: time of '{name}' over ours", value / seconds["ours"],
              papers.get(name, 0.0) if files == 16 else 0.0)
        for name, value in seconds.items() if name != "ours"
    ]  # fmt: skip


def of_kind(runs: Sequence[ProgramRun], kind: str) -> list[ProgramRun]:
    """Return the runs of one kind."""
    return [run for run in runs if run.program.kind == kind]


def mixed_ratios(machine: ReadingMachine = A6000, seconds: float = 40.0) -> list[Ratio]:
    """Section 8.5: chats at one a second together with nine map-reduce programs, on four
    engines."""
    chat: dict[str, float] = {}
    decode: dict[str, float] = {}
    book: dict[str, float] = {}
    for name, setting in MIXED_ARMS.items():
        runs = Cluster(setting, machine, 4, mixed(seconds, 9)).run()
        chats, books = of_kind(runs, "chat"), of_kind(runs, "map-reduce")
        chat[name] = mean(run.normalised_ms for run in chats)
        decode[name] = mean(run.decode_ms for run in chats)
        book[name] = mean(run.seconds for run in books)
        print(
            f"  {name:<32}chat {chat[name]:7.1f} ms/token, {decode[name]:6.1f} while generating; "
            f"map-reduce {book[name]:7.1f} s",
            flush=True,
        )
    rows = []
    for name, papers in (("latency", (5.5, 3.7, 1.0)), ("throughput", (1.23, 1.05, 1.72))):
        rows.append(Ratio(f"chat latency of '{name}' over ours", chat[name] / chat["ours"],
                          papers[0]))  # fmt: skip
        rows.append(Ratio(f"chat's time a token of '{name}' over ours",
                          decode[name] / decode["ours"], papers[2]))  # fmt: skip
        rows.append(Ratio(f"map-reduce time of '{name}' over ours", book[name] / book["ours"],
                          papers[1]))  # fmt: skip
    return rows


def tail_ratios(
    machine: ReadingMachine = SMALL, rate: float = 2.5, seconds: float = 25.0,
    make: Callable[[float, float], list[Program]] = heavy_tail,
) -> list[Ratio]:  # fmt: skip
    """Completion times of programs of very unequal size, on one engine, under each order."""
    found: dict[str, Mapping[str, float]] = {}
    for name, setting in TAIL_ARMS.items():
        runs = Cluster(setting, machine, 1, make(rate, seconds)).run()
        times = sorted(run.seconds for run in runs)
        found[name] = {"mean": mean(times), "p99": percentile(times, 99)}
        print(f"  {name:<32}mean {found[name]['mean']:7.1f} s, p99 {found[name]['p99']:7.1f} s",
              flush=True)  # fmt: skip
    rows = []
    for other in ("lpm", "app"):
        for figure in ("mean", "p99"):
            value = found[other][figure] / found["attained"][figure]
            rows.append(Ratio(f"{figure} completion of '{other}' over 'attained'", value))
    return rows
