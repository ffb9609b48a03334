"""SpaceDoor: where an engine's loop meets its spaces. Before the first is opened, each call is one
``if``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sglang.srt.core.batch import Batch, RowOutput
from sglang.srt.core.messages import Event
from sglang.srt.core.space_messages import SpaceVerb
from sglang.srt.spaces.space_host import SpaceFacts, SpaceHost
from sglang.srt.spaces.space_system import Spaces

EMPTY_STEPS = 4  # steps without a pass, after which there is nothing to do until a verb comes


class InFlight(Protocol):
    """A pass (``engine.planned_pass``)."""

    @property
    def batch(self) -> Batch: ...


class SpaceDoor:
    """The spaces of an engine.

    Args:
        budget: tokens of a pass (``chunked_prefill_size``).

    Attributes:
        spaces: None before the first is opened.
    """

    def __init__(self, host: SpaceHost, facts: SpaceFacts, budget: int) -> None:
        self.spaces: Spaces | None = None
        self._host, self._facts, self._budget = host, facts, budget
        self._empty = 0  # steps that could plan nothing, one after the other

    def apply(self, verb: SpaceVerb) -> None:
        """Apply a verb."""
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
        """Whether a pass could compute something."""
        return self.spaces is not None and self.spaces.work

    @property
    def starved(self) -> bool:
        """Whether all that waits lacks pages that older programs hold."""
        return self._empty >= EMPTY_STEPS

    def stepped(self, planned: bool) -> None:
        """Note a step, and whether a pass was planned or is in flight."""
        self._empty = 0 if planned or self.spaces is None else self._empty + 1

    def collect(self, number: int, outputs: Sequence[RowOutput]) -> None:
        """Answer what pass ``number`` has ended."""
        if self.spaces is not None:
            self.spaces.collect(number, outputs)

    def failed(self, error: str) -> None:
        """All passes in flight have failed; the prefix cache is not flushed yet."""
        if self.spaces is not None:
            self.spaces.failed(error)

    def lost(self, error: str) -> None:
        """The engine is about to end."""
        if self.spaces is not None:
            self.spaces.lost(error)

    @property
    def counts(self) -> dict[str, int]:
        """Counts of spaces; none before the first."""
        return {} if self.spaces is None else self.spaces.counts
