"""Spaces: all programs of an engine that hold KV pages (inferlets, Pie). Interface of this package.

``SpaceDoor`` makes it when the first space is opened, so engines without spaces do no work here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sglang.srt.core.batch import Batch, RowOutput
from sglang.srt.core.messages import Done, Event, Failed
from sglang.srt.core.space_messages import SpaceVerb
from sglang.srt.memory.radix_node import RadixNode
from sglang.srt.schedule.scheduler import pages
from sglang.srt.schedule.scheduler_view import Item, PassDecision, View
from sglang.srt.spaces.prefix_fills import PrefixFills
from sglang.srt.spaces.space_host import SpaceFacts, SpaceHost
from sglang.srt.spaces.space_memory import SpaceCaps, SpaceMemory
from sglang.srt.spaces.space_passes import SpacePasses
from sglang.srt.spaces.space_verbs import SpaceVerbs


class Spaces:
    """Pages, work and answers of all spaces. Implements ``memory.store.PageHolder``.

    Args:
        budget: most tokens of a pass (``chunked_prefill_size``).

    Attributes:
        memory: spaces, exports and their pages.
    """

    def __init__(self, host: SpaceHost, facts: SpaceFacts, budget: int) -> None:
        store = host.store
        self.memory = SpaceMemory(host, SpaceCaps.of(store.pool.size), facts.windowed)
        self._budget = budget
        self._prefixes = PrefixFills(self.memory)
        self._verbs = SpaceVerbs(self.memory, facts, self._prefixes)
        self._passes = SpacePasses(
            self.memory, self._verbs, facts.max_loras_per_batch, host.pipelined
        )
        store.holder = self
        self._store, self._size = store, facts.page_size

    def apply(self, verb: SpaceVerb) -> None:
        """Apply a verb. ``events`` returns the answers."""
        self._verbs.apply(verb)

    def events(self, news: list[Event], in_flight: int) -> list[Event]:
        """Return the engine's events and those of spaces. Terminal events of the engine's own
        requests (fills) are removed. ``in_flight``: id of the last pass in flight; 0: none."""
        found: list[Event] = []
        for event in news:
            if isinstance(event, Done | Failed) and event.request < 0:
                message = event.message if isinstance(event, Failed) else ""
                self._prefixes.ended(event.request, message, in_flight)
            else:
                found.append(event)
        if self.memory.events:
            found += self.memory.events
            self.memory.events = []
        return found

    @property
    def work(self) -> bool:
        """Whether any space has pending work."""
        return any(space.pending for space in self.memory.spaces.values())

    def give_way(self, view: View, decision: PassDecision, idle: bool) -> bool:
        """End younger spaces for the oldest request that has no row because pages are short. Return
        whether more pages are available.

        ``idle``: whether the pass would be empty; waiting requests are then considered, too.
        """
        if decision.retract:
            return False  # the retractions may free enough pages
        planned = {number for number, _ in decision.rows}
        starved = (i for i in view.running if i.work and not i.fixed and i.id not in planned)
        if (item := next(starved, None)) is not None:
            chunk = min(item.work, max(view.budget.tokens, 1))
            if self._give(item, pages(chunk - item.room, self._size)):
                return True
        if idle and view.waiting:
            for item in sorted(view.waiting, key=lambda item: item.arrival):
                found = view.match(item.id)
                if self._give(item, found.pins + pages(item.work - found.tokens, self._size)):
                    return True
        return False

    def _give(self, item: Item, count: int) -> bool:
        return self._store.available < count and self.memory.give_way(item.arrival, count)

    def plan(self, batch: Batch, adapters: set[int], previous: int) -> None:
        """Add rows and copies of pending work to a pass. ``previous``: id of the previous pass if
        in flight, else -1."""
        self._passes.plan(batch, adapters, self._budget, previous)

    def collect(self, number: int, outputs: Sequence[RowOutput]) -> None:
        """Answer the work that pass ``number`` has completed."""
        self._passes.collect(number, outputs)
        if len(self._prefixes):
            self._prefixes.collected(number)

    def failed(self, error: str) -> None:
        """Fail the work of all passes in flight. Call before the prefix cache is flushed."""
        self._prefixes.failing()
        self._passes.failed(error)

    def lost(self, message: str) -> None:
        """End all spaces, since the engine is about to end."""
        for space in list(self.memory.spaces.values()):
            self.memory.end(space, "lost", message)

    # -- the store's view (``memory.store.PageHolder``) ------------------------------------------

    @property
    def held(self) -> int:
        """Number of pool pages that spaces and exports hold, pages of the prefix cache excluded."""
        return self.memory.pages.held

    @property
    def adapters(self) -> set[int]:
        """Numbers of the spaces' adapters."""
        return {space.namespace.adapter for space in self.memory.spaces.values()}

    def locks(self) -> Iterator[int]:
        """Yield the numbers of the nodes of every locked path of the prefix cache."""
        spaces = self.memory.spaces.values()
        ends = [lease.node for space in spaces for lease in space.leases]
        for end in ends + self._prefixes.nodes():
            node: RadixNode | None = end
            while node is not None:
                yield node.number
                node = node.parent

    def check(self) -> set[int]:
        """Raise AssertionError if a page is lost or held twice. Return the pages held."""
        return self.memory.check()

    @property
    def counts(self) -> dict[str, int]:
        """Gauges by name: spaces, their pending work, exports, and tokens of the pages that spaces
        and exports hold."""
        spaces = self.memory.spaces.values()
        return {
            "spaces": len(spaces),
            "space_work": sum(len(space.pending) for space in spaces),
            "space_tokens": self.memory.used * self._size,
            "exports": len(self.memory.exports),
        }
