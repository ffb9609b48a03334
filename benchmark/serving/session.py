"""Session: targets measured in turns on the same work, so that noise falls on all alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from sglang.srt.commands.bench.load import BenchRun, offer
from sglang.srt.commands.bench.stats import Summary, summarise
from sglang.srt.commands.bench.target import Target
from sglang.srt.commands.bench.workload import Conversation

from benchmark.serving.report import Comparison, compare, problems


@dataclass
class Column:
    """One target: its runs, what they amount to, and what the engine counted during each."""

    target: Target
    runs: list[BenchRun] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    counted: list[dict[str, float]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def typical(self) -> Summary:
        """Summary of the run of median duration (the faster of the middle two)."""
        return self.summaries[self._middle]

    @property
    def typical_run(self) -> BenchRun:
        """The run that ``typical`` is of."""
        return self.runs[self._middle]

    @property
    def _middle(self) -> int:
        order = sorted(range(len(self.runs)), key=lambda i: self.summaries[i].seconds)
        return order[(len(order) - 1) // 2]


@dataclass(frozen=True)
class Work:
    """Work that every run offers: conversations and the start of each."""

    conversations: Sequence[Conversation]
    offsets: Sequence[float]
    max_concurrency: int = 0
    timeout: float = 600.0
    exact: bool = True  # wants the requested number of tokens


async def measure(
    targets: Sequence[Target],
    work: Work,
    *,
    warmup: Sequence[Conversation] = (),
    rounds: int = 1,
    flush: bool = False,
) -> list[Column]:
    """``rounds`` runs of each target: A B C A B C. Targets are started, and closed at the end.

    Raises what starting or flushing a target raises.
    """
    columns = [Column(target) for target in targets]
    try:
        for column in columns:
            await column.target.start()
            if warmup:
                run = await offer(
                    column.target,
                    warmup,
                    [0.0] * len(warmup),
                    max_concurrency=work.max_concurrency,
                    timeout=work.timeout,
                )
                column.problems += [f"warm-up: {r.error}" for r in run.results if r.error]
        for _ in range(rounds):
            for column in columns:
                await _round(column, work, flush)
    finally:
        for column in columns:
            await column.target.close()
    return columns


async def _round(column: Column, work: Work, flush: bool) -> None:
    if flush:
        await column.target.flush()
    before = await column.target.counters()
    run = await offer(
        column.target, work.conversations, work.offsets,
        max_concurrency=work.max_concurrency, timeout=work.timeout,
    )  # fmt: skip
    after = await column.target.counters()
    column.runs.append(run)
    column.summaries.append(summarise(run.results, run.cpu_seconds))
    column.counted.append({name: after[name] - before[name] for name in after.keys() & before})
    column.problems += problems(work.conversations, run.results, work.exact)


def speedup(ours: Column, theirs: Column) -> float:
    """Median over the rounds of their duration over ours. A ratio of neighbours in time is what
    survives a machine whose speed drifts."""
    pairs = zip(ours.summaries, theirs.summaries, strict=True)
    return median([b.seconds / a.seconds if a.seconds else 0.0 for a, b in pairs])


def comparisons(columns: Sequence[Column]) -> list[tuple[str, Comparison]]:
    """The first run of the first column against the first of every other, and each column's own
    later runs against its first."""
    found = []
    for column in columns[1:]:
        pair = compare(columns[0].runs[0].results, column.runs[0].results)
        found.append((f"{columns[0].target.name} and {column.target.name}", pair))
    for column in columns:
        for run in column.runs[1:]:
            again = compare(column.runs[0].results, run.results)
            if again.same != again.total:
                found.append((f"{column.target.name} and itself, later", again))
    return found
