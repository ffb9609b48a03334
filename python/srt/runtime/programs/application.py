"""Application: programs of one session that exchange values, and what their calls are served for.

Submissions that read variables of one another are one application: it has one arrival, and its
objectives are deduced over all its calls, again whenever a client says more.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from sglang.srt.core.call_hints import CallHint, HintKind
from sglang.srt.programs.call_graph import Sources
from sglang.srt.programs.objectives import NO_CRITERIA, CallLabel, Criteria, Level, deduce
from sglang.srt.runtime.programs.program_run import ProgramRun

MOST_EDGES = 1 << 14
"""Calls of an application, and values that they read, which objectives are deduced over; calls of a
larger one are served without: labels are made anew with each submission and each new wish."""
PLAIN = CallLabel()
Node = tuple[str, int]
"""A call, by its run's id and its step."""


class Application:
    """The runs that exchange values.

    Attributes:
        name: no other tenant's has it. arrived: when its first submission came.
    """

    def __init__(self, name: str, arrived: float) -> None:
        self.name, self.arrived = name, arrived
        self.runs: list[ProgramRun] = []
        self._labels: dict[Node, CallLabel] | None = None

    def add(self, run: ProgramRun) -> None:
        """Take a run in."""
        self.runs.append(run)
        run.application = self
        self._labels = None

    def absorb(self, other: Application) -> None:
        """Take in all runs of another application; the earlier arrival counts."""
        self.arrived = min(self.arrived, other.arrived)
        for run in other.runs:
            self.add(run)
        other.runs = []

    def changed(self) -> None:
        """A client has said what it wants of a variable."""
        self._labels = None

    def hint(self, run: str, step: int) -> CallHint:
        """Facts for the engine about a call; step -1 is a prompt that is computed ahead."""
        if step < 0:
            return CallHint(self.name)
        label = self.labels().get((run, step), PLAIN)
        criteria = label.criteria
        kind: HintKind = ""
        if criteria.level >= Level.TIMED:
            kind = "latency"
        elif criteria.level is Level.THROUGHPUT:
            kind = "throughput"
        return CallHint(
            self.name, kind, criteria.tpot_ms, criteria.ttft_ms, label.group, label.stage
        )

    def labels(self) -> dict[Node, CallLabel]:
        """The label of each call; none has one where there are more than MOST_EDGES."""
        if self._labels is None:
            self._labels = self._deduced()
        return self._labels

    def _deduced(self) -> dict[Node, CallLabel]:
        before: dict[Node, list[Node]] = {}
        wishes: dict[Node, Criteria] = {}
        left = MOST_EDGES
        for run in self.runs:
            for call, sources in run.graph.reads.items():
                nodes = list(islice(_calls(run, sources), left))
                left -= len(nodes) + 1
                if left <= 0:
                    return {}
                before[run.id, call] = list(filter(None, nodes))
        for run in self.runs:
            for variable in run.variables.values():
                if variable.criteria.level:
                    made = run.graph.made[variable.step, variable.name]
                    nodes = list(islice(_calls(run, made), left))
                    left -= len(nodes) + 1
                    if left <= 0:
                        return {}
                    for node in filter(None, nodes):
                        known = wishes.get(node, NO_CRITERIA)
                        wishes[node] = known.joined(variable.criteria)
        return deduce(before, wishes)


def _calls(run: ProgramRun, sources: Sources) -> Iterator[Node | None]:
    """The calls among sources of a run, and those after the variables of other runs there; None
    for each of the other sources."""
    waiting, seen = [(run, sources)], set[str]()
    while waiting:
        run, sources = waiting.pop()
        for source in sources:
            if isinstance(source, int):
                yield run.id, source
                continue
            yield None
            if source.var is not None and source.var not in seen:
                seen.add(source.var)
                made = run.session.variables[source.var]
                if made.run:
                    maker = run.session.runs[made.run]
                    waiting.append((maker, maker.graph.made[made.step, made.name]))
