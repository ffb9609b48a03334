"""CallPlacement: chooses engines for the calls of applications (Parrot, section 5.4, Algorithm 1).

The functions read and change only their arguments: a queue of calls, and views of engines, which
every placed call changes. An engine with a latency-sensitive call may hold few tokens, so that its
passes stay short. Sending such a call to an engine that serves throughput loses the difference in
capacity. Sending it to an engine that already has one loses nothing. The paper leaves out the
details of ``FindEngine``. Here it chooses, among the engines with room, the least sum of the
capacity lost, the prefix missed and the load besides the prefix, all in tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sglang.srt.core.call_hints import CallHint, PrefixHash
from sglang.srt.routing.prefix_store import PrefixStore


class QueuedCall(NamedTuple):
    """A call that waits for an engine.

    Attributes:
        id: number of the call; arrival: sort key of its application.
        tokens: tokens of its prompt and of its expected answer.
        prefixes: beginnings of the prompt that end at a variable, the shortest first.
    """

    id: int
    arrival: float
    tokens: int
    prefixes: Sequence[PrefixHash] = ()
    hint: CallHint | None = None

    @property
    def group(self) -> tuple[str, int] | None:
        """Return the key of the call's task group, None if it has none."""
        hint = self.hint
        return None if hint is None or hint.group < 0 else (hint.program, hint.group)

    @property
    def sensitive(self) -> bool:
        """Return whether the call's own latency matters."""
        return is_sensitive(self.hint)


@dataclass(slots=True)
class EngineView:
    """The facts about an engine that a placement uses.

    Attributes:
        capacity: tokens that it may hold; latency_tokens: the same while a latency-sensitive call
            runs.
        load: tokens that it holds; shared tokens count once.
        sensitive: whether a latency-sensitive call runs there.
    """

    name: str
    capacity: int
    latency_tokens: int
    load: int = 0
    sensitive: bool = False

    def limit(self, sensitive: bool) -> int:
        """Return the tokens that the engine may hold with one more call, ``sensitive`` to latency
        or not."""
        return self.latency_tokens if sensitive or self.sensitive else self.capacity


@dataclass(slots=True)
class CallPlacement:
    """Engines and prefixes, and the calls placed so far.

    Attributes:
        store: engines that hold prefixes.
        placed: engines by call id, in the order of placement.
    """

    engines: Sequence[EngineView]
    store: PrefixStore
    placed: dict[int, str] = field(default_factory=dict)

    def schedule(self, queue: Collection[QueuedCall]) -> Mapping[int, str]:
        """Choose an engine for each call. Return the engines by call id, without calls that fit no
        engine: they wait.

        The numbers are the lines of Algorithm 1. If a task group, or sharers of a prefix, fit no
        engine together, they are placed one by one, so that they do not wait for ever.
        """
        waiting = {call.id: call for call in sorted(queue, key=topological)}  # 1
        for call in list(waiting.values()):  # 2
            if call.id not in waiting:
                continue
            sharers, holders = self.shared_prefix(call, waiting.values())  # 3
            found: Sequence[QueuedCall] = ()
            if call.group is not None:  # 4
                group = [other for other in waiting.values() if other.group == call.group]
                found = self.find_engine(group)  # 5
            elif len(sharers) > 1:  # 6
                found = self.find_engine(sharers)  # 7
            elif holders:  # 8
                found = self.find_engine([call], holders)  # 9
            if not found:  # 10
                found = self.find_engine([call])  # 11
            for each in found:  # 12
                del waiting[each.id]
        return self.placed

    def shared_prefix(
        self, call: QueuedCall, queue: Collection[QueuedCall]
    ) -> tuple[list[QueuedCall], Mapping[str, int]]:
        """FindSharedPrefix: return the queued calls that share the longest prefix that any of them
        shares with ``call``, and the engines that hold a prefix of it, with its tokens. No member
        of a task group is among the calls, because groups are placed as a whole."""
        for prefix in reversed(call.prefixes):
            sharers = [
                other for other in queue if other.group is None and prefix in other.prefixes
            ]  # fmt: skip
            if len(sharers) > 1:
                return sharers, self.store.held(call.prefixes)
        return [call], self.store.held(call.prefixes)

    def find_engine(
        self, calls: Sequence[QueuedCall], among: Collection[str] | None = None
    ) -> Sequence[QueuedCall]:
        """FindEngine: send the calls to the one engine of least cost that has room for all.

        Args:
            among: names of the engines that may be chosen; None: all.

        Returns the calls; an empty sequence if no engine has room.
        """
        best, least = None, 0
        sensitive = any(call.sensitive for call in calls)
        for engine in self.engines:
            if among is not None and engine.name not in among:
                continue
            need = missed(calls, engine.name, self.store)
            if engine.load + need > engine.limit(sensitive):
                continue
            held = max(self.store.held(call.prefixes).get(engine.name, 0) for call in calls)
            cost = capacity_lost(engine, sensitive) + need + max(engine.load - held, 0)
            if best is None or cost < least:
                best, least = engine, cost
        if best is None:
            return ()
        best.load += missed(calls, best.name, self.store)
        best.sensitive = best.sensitive or sensitive
        for call in calls:
            self.store.add(call.prefixes, best.name)
            self.placed[call.id] = best.name
        return calls


def is_sensitive(hint: CallHint | None) -> bool:
    """Return whether a call's own latency matters. It does not for a member of a task group,
    because only the end of the group matters."""
    if hint is None or hint.group >= 0:
        return False
    return hint.kind == "latency" or hint.tpot_ms > 0


def topological(call: QueuedCall) -> tuple[float, int, int]:
    """Sort key: application by application, and within one the calls with most stages after
    them first."""
    return call.arrival, -call.hint.stage if call.hint is not None else 1, call.id


def capacity_lost(engine: EngineView, sensitive: bool) -> int:
    """Return the tokens by which further calls shrink what the engine may hold."""
    return engine.limit(False) - engine.limit(sensitive)


def missed(calls: Sequence[QueuedCall], engine: str, store: PrefixStore) -> int:
    """Return the number of tokens that the calls add to an engine. A call adds its tokens after the
    longest prefix that the engine holds or that an earlier one of the calls adds."""
    brought: set[int] = set()
    total = 0
    for call in calls:
        held = store.held(call.prefixes).get(engine, 0)
        ours = max((p.tokens for p in call.prefixes if p.digest in brought), default=0)
        total += max(call.tokens - max(held, ours), 0)
        brought.update(prefix.digest for prefix in call.prefixes)
    return total
