"""SpaceDoor: interface between an engine's loop and its spaces. Until the first space is opened,
each call costs only one ``if``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sglang.srt.core.batch import Batch, RowOutput
from sglang.srt.core.messages import Event
from sglang.srt.core.space_messages import SpaceVerb
from sglang.srt.spaces.space_host import SpaceFacts, SpaceHost
from sglang.srt.spaces.space_system import Spaces

EMPTY_STEPS = 4  # steps without a pass after which the engine is idle until a verb arrives


class InFlight(Protocol):
    """A pass (``engine.planned_pass``)."""

    @property
    def batch(self) -> Batch: ...


class SpaceDoor:
    """The spaces of an engine.

    Args:
        budget: most tokens of a pass (``chunked_prefill_size``).

    Attributes:
        spaces: all spaces; None before the first is opened.
    """

    def __init__(self, host: SpaceHost, facts: SpaceFacts, budget: int) -> None:
        self.spaces: Spaces | None = None
        self._host, self._facts, self._budget = host, facts, budget
        self._empty = 0  # number of consecutive steps without a pass

    def apply(self, verb: SpaceVerb) -> None:
        """Apply a verb. The first verb makes ``spaces``."""
        if self.spaces is None:
            self.spaces = Spaces(self._host, self._facts, self._budget)
        self.spaces.apply(verb)

    def events(self, news: list[Event], in_flight: Sequence[InFlight]) -> list[Event]:
        """Return the engine's events with those of spaces (``Spaces.events``)."""
        if self.spaces is None:
            return news
        return self.spaces.events(news, in_flight[-1].batch.id if in_flight else 0)

    @property
    def work(self) -> bool:
        """Whether any space has pending work."""
        return self.spaces is not None and self.spaces.work

    @property
    def starved(self) -> bool:
        """Whether all waiting work needs pages that older programs hold."""
        return self._empty >= EMPTY_STEPS

    def stepped(self, planned: bool) -> None:
        """Note a step, and whether a pass was planned or is in flight."""
        self._empty = 0 if planned or self.spaces is None else self._empty + 1

    def collect(self, number: int, outputs: Sequence[RowOutput]) -> None:
        """Answer the work that pass ``number`` has completed."""
        if self.spaces is not None:
            self.spaces.collect(number, outputs)

    def failed(self, error: str) -> None:
        """Fail the work of all passes in flight. Call before the prefix cache is flushed."""
        if self.spaces is not None:
            self.spaces.failed(error)

    def lost(self, error: str) -> None:
        """End all spaces, since the engine is about to end."""
        if self.spaces is not None:
            self.spaces.lost(error)

    @property
    def counts(self) -> dict[str, int]:
        """Gauges of spaces by name; empty before the first space is opened."""
        return {} if self.spaces is None else self.spaces.counts
