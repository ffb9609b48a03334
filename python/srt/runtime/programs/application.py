"""Application: programs of one session that exchange values, and the objectives of their calls.

Submissions that read variables of one another are one application. An application has one arrival
time. The objectives of its calls are deduced over all of them, and anew when a client adds criteria
(Parrot, ``deduce``).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from sglang.srt.core.call_hints import CallHint, HintKind
from sglang.srt.programs.call_graph import Sources
from sglang.srt.programs.objectives import NO_CRITERIA, CallLabel, Criteria, Level, deduce
from sglang.srt.runtime.programs.program_run import ProgramRun

MOST_EDGES = 1 << 14
"""Most calls and read values of an application whose objectives are deduced. A larger application
is served without them, because each submission and each new criterion deduces all labels anew."""
PLAIN = CallLabel()
Node = tuple[str, int]
"""A call: the id of its run, and the number of its step."""


class Application:
    """The runs that exchange values.

    Attributes:
        name: unique over all tenants. arrived: moment when the first submission came.
    """

    def __init__(self, name: str, arrived: float) -> None:
        self.name, self.arrived = name, arrived
        self.runs: list[ProgramRun] = []
        self._labels: dict[Node, CallLabel] | None = None

    def add(self, run: ProgramRun) -> None:
        """Add a run to the application."""
        self.runs.append(run)
        run.application = self
        self._labels = None

    def absorb(self, other: Application) -> None:
        """Move all runs of another application into this one, and keep the earlier arrival."""
        self.arrived = min(self.arrived, other.arrived)
        for run in other.runs:
            self.add(run)
        other.runs = []

    def changed(self) -> None:
        """Discard the labels, because a client has given new criteria for a variable."""
        self._labels = None

    def hint(self, run: str, step: int) -> CallHint:
        """Return facts for the engine about a call. Step -1: a prompt that is computed ahead."""
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
        """Return the label of each call; {} if the application exceeds MOST_EDGES."""
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
    """Yield the calls that ``sources`` of a run come from, also through variables of other runs.
    Yield None for each source that is not a call."""
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
