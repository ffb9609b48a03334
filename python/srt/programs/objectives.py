"""Objectives: what a program's calls are served for, deduced from what is fetched (Parrot, 5.2).

A client says of a variable that it waits for it (latency), for its first token or at a pace (ttft,
tpot), or that all it wants is throughput. The calls before are labelled in one pass in reverse
topological order:

- latency: all calls that the variable is made from are sensitive to latency. Parallel calls of one
  stage are a task group, whose end counts, not that of each.
- ttft: calls before the one that makes the variable delay its first token, so they are labelled
  too; tpot concerns that call alone.
- throughput: all calls that the variable is made from.

Labels form a lattice: latency over ttft and tpot over throughput over none; of two times the
shorter. A later wish can only raise a label.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

Call = TypeVar("Call", bound=Hashable)
MAX_MS = 3.6e6


class Level(IntEnum):
    """Urgency of a call or a variable."""

    NONE = 0
    THROUGHPUT = 1
    TIMED = 2
    LATENCY = 3


@dataclass(frozen=True)
class Criteria:
    """Wishes of a client for a variable. Times are milliseconds, 0 where there is no wish."""

    level: Level = Level.NONE
    ttft_ms: float = 0.0
    tpot_ms: float = 0.0

    def joined(self, other: Criteria) -> Criteria:
        """The least criteria that satisfy both."""
        return Criteria(
            max(self.level, other.level),
            _sooner(self.ttft_ms, other.ttft_ms),
            _sooner(self.tpot_ms, other.tpot_ms),
        )

    def upstream(self) -> Criteria:
        """Criteria of the calls before."""
        if self.level is Level.TIMED and not self.ttft_ms:
            return NO_CRITERIA
        return Criteria(self.level)

    @property
    def word(self) -> str:
        """Name of the level, as it is shown."""
        return "" if self.level is Level.NONE else self.level.name.lower()


NO_CRITERIA = Criteria()
LATENCY = Criteria(Level.LATENCY)
THROUGHPUT = Criteria(Level.THROUGHPUT)


def _sooner(a: float, b: float) -> float:
    return min(a, b) if a and b else a or b


def criteria_of(value: object) -> Criteria:
    """Criteria as they are sent: "latency", "throughput", {"ttft_ms"}, {"tpot_ms"}; null: none.

    Raises ValueError.
    """
    if value is None:
        return NO_CRITERIA
    if value == "latency":
        return LATENCY
    if value == "throughput":
        return THROUGHPUT
    if isinstance(value, dict) and value and value.keys() <= {"ttft_ms", "tpot_ms"}:
        for name, ms in value.items():
            if isinstance(ms, bool) or not isinstance(ms, (int, float)) or not 0 < ms <= MAX_MS:
                raise ValueError(f"{name} is {ms!r:.40}; give milliseconds above 0, to {MAX_MS:g}")
        return Criteria(Level.TIMED, **{name: float(ms) for name, ms in value.items()})
    raise ValueError(
        f"criteria is {value!r:.80}; give latency, throughput, or an object with ttft_ms or tpot_ms"
    )


@dataclass(frozen=True)
class CallLabel:
    """Urgency and position of one call.

    Attributes:
        criteria: of the call.
        stage: calls on the longest path after it to one that makes a fetched latency variable; -1
            where there is none.
        group: number of its task group, -1 for none.
        remaining: calls on the longest path from it to an end, itself included.
        critical: it lies on a longest path of the program.
    """

    criteria: Criteria = NO_CRITERIA
    stage: int = -1
    group: int = -1
    remaining: int = 1
    critical: bool = False


def deduce(
    before: Mapping[Call, Iterable[Call]], wishes: Mapping[Call, Criteria]
) -> dict[Call, CallLabel]:
    """CallLabel each call.

    Args:
        before: of each call those that it directly waits for; no cycle.
        wishes: criteria of what a call makes, where a client has some.
    """
    order = topological(before)
    own = {call: wishes.get(call, NO_CRITERIA) for call in order}
    passed = dict.fromkeys(order, NO_CRITERIA)  # from the calls after
    stages, remaining = dict.fromkeys(order, -1), dict.fromkeys(order, 1)
    depth: dict[Call, int] = {}
    for call in order:
        depth[call] = 1 + max((depth[each] for each in before[call]), default=0)
    for call in reversed(order):
        if own[call].level is Level.LATENCY:
            stages[call] = max(stages[call], 0)
        more = passed[call].joined(own[call].upstream())
        for each in before[call]:
            passed[each] = passed[each].joined(more)
            remaining[each] = max(remaining[each], remaining[call] + 1)
            if stages[call] >= 0:
                stages[each] = max(stages[each], stages[call] + 1)
    groups = _groups(order, before, stages)
    longest = max(remaining.values(), default=0)
    return {
        call: CallLabel(
            own[call].joined(passed[call]), stages[call], groups[call], remaining[call],
            depth[call] + remaining[call] - 1 == longest,
        )
        for call in order
    }  # fmt: skip


def _groups(
    order: list[Call], before: Mapping[Call, Iterable[Call]], stages: Mapping[Call, int]
) -> dict[Call, int]:
    """Task groups: of at least two calls of one stage behind which others wait, in one component of
    the graph. Two calls of one stage are parallel: on a path between them the stage would fall."""
    roots = components(before)
    members: dict[tuple[Call, int], list[Call]] = {}
    for call in order:
        if stages[call] >= 1:
            members.setdefault((roots[call], stages[call]), []).append(call)
    found = dict.fromkeys(order, -1)
    groups = [group for group in members.values() if len(group) > 1]
    for number, group in enumerate(groups):
        found.update(dict.fromkeys(group, number))
    return found


def components(before: Mapping[Call, Iterable[Call]]) -> dict[Call, Call]:
    """One member of the connected component of each call, the same for all in it."""
    parent = {call: call for call in before}

    def root(call: Call) -> Call:
        while parent[call] != call:
            parent[call] = parent[parent[call]]
            call = parent[call]
        return call

    for call, earlier in before.items():
        for each in earlier:
            parent[root(each)] = root(call)
    return {call: root(call) for call in before}


def topological(before: Mapping[Call, Iterable[Call]]) -> list[Call]:
    """The calls, each behind those that it waits for. Raises ValueError for a cycle."""
    missing = {call: len(set(earlier)) for call, earlier in before.items()}
    behind: dict[Call, list[Call]] = {call: [] for call in before}
    for call, earlier in before.items():
        for each in set(earlier):
            behind[each].append(call)
    order = [call for call in before if not missing[call]]
    for call in order:  # grows as it is read
        for each in behind[call]:
            missing[each] -= 1
            if not missing[each]:
                order.append(each)
    if len(order) < len(missing):
        raise ValueError("the calls wait for one another")
    return order
