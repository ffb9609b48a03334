"""ApplicationMemory: what the policy ``application`` knows of earlier calls."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from sglang.srt.core.call_hints import PrefixHash
from sglang.srt.routing.prefix_store import PrefixStore

LATENCY_SHARE = 0.3  # the paper's engine: 0.03 to 0.1; those of today: up to 1
GROUPS = 10_000  # most task groups whose engine is remembered; the last ones
TaskGroup = tuple[str, int]


class ApplicationMemory:
    """Engines of prefixes and of task groups.

    Attributes:
        store: engines that hold prefixes.
        latency_share: part of its tokens that an engine holds while a latency-sensitive call runs
            there.
    """

    def __init__(self, latency_share: float = LATENCY_SHARE) -> None:
        self.store, self.latency_share = PrefixStore(), latency_share
        self._groups: OrderedDict[TaskGroup, str] = OrderedDict()

    def engine_of(self, group: TaskGroup | None) -> str:
        """Return the engine that the last call of a task group was sent to, "" for none."""
        return "" if group is None else self._groups.get(group, "")

    def sent(self, group: TaskGroup | None, engine: str) -> None:
        """Note the engine of a task group's call."""
        if group is not None:
            self._groups[group] = engine
            self._groups.move_to_end(group)
            if len(self._groups) > GROUPS:
                self._groups.popitem(last=False)

    def failed(self, prefixes: Sequence[PrefixHash], engine: str) -> None:
        """Note that a call has ended before its prompt was computed."""
        self.store.discard(prefixes, engine)

    def forget(self, engine: str) -> None:
        """Note that an engine is gone, or has begun anew. Linear in what is remembered."""
        self.store.forget(engine)
        for group in [group for group, name in self._groups.items() if name == engine]:
            del self._groups[group]
