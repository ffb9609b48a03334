"""Figures: runs of the simulation, means over seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace

from benchmark.interception.agent_load import generated, mean_live
from benchmark.routing import faults
from benchmark.routing.outcome import Outcome, mean
from benchmark.routing.served_engine import Machine
from benchmark.routing.simulation import Setting, Simulation
from benchmark.routing.traffic import Agents, Chats

ONE = "one engine"  # with the memory and the speed of all


@dataclass(frozen=True)
class Scope:
    """Size of the runs: seeds, seconds of arrivals, and the first of them that count."""

    seeds: int = 5
    seconds: float = 80.0
    warm: float = 30.0
    processes: int = 1

    def __str__(self) -> str:
        return f"{self.seeds} seeds, {self.seconds:g} s of arrivals, from {self.warm:g} s on"


@dataclass(frozen=True)
class Run:
    """A run without its seed. ``rate``: chats a second an engine; ``load``: live KV of agents over
    all memory, in place of chats where it is given."""

    setting: Setting
    rate: float = 0.0
    load: float = 0.0
    fault: str = "nothing"

    def at(self, rate: float) -> Run:
        return replace(self, rate=rate)


@dataclass(frozen=True)
class Means:
    """Means over seeds. Seconds; ``throughput``: tokens a second an engine; ``work``: computed
    tokens of a prompt; ``busy``: mean requests at a time, of an agent's program."""

    hit: float
    p50: float
    p95: float
    throughput: float
    work: float
    moved: float
    choice_us: float
    requests: float
    spans: tuple[tuple[float, float], ...] = field(default=())  # hit rate and p95 around a fault


def run_of(policy: str, engines: int, **changes: object) -> Run:
    """Return a run; "one engine" is one with the machine of all."""
    if policy == ONE:
        one = Setting("least-load", 1, machine=Machine().times(engines))
        return Run(replace(one, **changes))  # type: ignore[arg-type]
    return Run(replace(Setting(policy, engines), **changes))  # type: ignore[arg-type]


def play(run: Run, scope: Scope, seed: int) -> tuple[Outcome, float]:
    """Play one seed. Returns the outcome and the number of engines whose memory it had."""
    setting = replace(run.setting, seed=seed)
    size = setting.engines * setting.machine.capacity / Machine().capacity
    traffic: Agents | Chats = Chats(run.rate * size, scope.seconds, seed)
    if run.load:
        live = mean_live(generated(1000, seed))
        clients = round(run.load * size * Machine().capacity / live)
        traffic = Agents(clients, scope.seconds, seed)
    simulation = Simulation(setting)
    faults.FAULTS[run.fault](simulation)
    return simulation.run(traffic), size


def measured(run: Run, scope: Scope, seed: int) -> Means:
    """Play one seed."""
    whole, size = play(run, scope, seed)
    found = whole.due(scope.warm)
    edges = (faults.BEGIN, faults.END, faults.AFTER) if run.fault != "nothing" else ()
    spans = [whole.due(edge - 20.0, edge) for edge in edges]
    if run.fault == "router restarted":
        spans = [whole.due(at, at + 10.0, front) for at in range(30, 100, 10) for front in (0, 1)]
    return Means(
        found.hit_rate, found.ttft(0.5), found.ttft(0.95),
        whole.throughput(scope.warm, scope.seconds) / size,
        found.computed / max(len(found.answers), 1), found.moved, whole.choice_us,
        len(found.answers), tuple((span.hit_rate, span.ttft(0.95)) for span in spans),
    )  # fmt: skip


def means(runs: Sequence[Run], scope: Scope) -> Iterator[Means]:
    """Yield the means over the seeds of each run."""
    seeds = range(scope.seeds)
    work = [(run, scope, seed) for run in runs for seed in seeds]
    if scope.processes == 1:
        yield from _grouped((measured(*each) for each in work), scope.seeds)
        return
    with ProcessPoolExecutor(scope.processes) as pool:
        yield from _grouped(pool.map(measured, *zip(*work)), scope.seeds)


def _grouped(found: Iterable[Means], count: int) -> Iterator[Means]:
    group: list[Means] = []
    for each in found:
        group.append(each)
        if len(group) == count:
            yield mean_of(group)
            group = []


def mean_of(found: Sequence[Means]) -> Means:
    """Return the means of several seeds' figures."""
    spans = zip(*(each.spans for each in found))
    numbers = {name: mean([getattr(each, name) for each in found]) for name in NUMBERS}
    return Means(
        **numbers,
        spans=tuple(
            (mean([hit for hit, _ in span]), mean([p95 for _, p95 in span])) for span in spans
        ),
    )


NUMBERS = ("hit", "p50", "p95", "throughput", "work", "moved", "choice_us", "requests")
