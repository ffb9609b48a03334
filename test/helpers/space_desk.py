"""SpaceDesk: an engine over a fake worker, and spaces whose every answer is known beforehand."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from helpers.desk import Desk
from helpers.fake_worker import ADAPTED, Reader, logprob_at
from helpers.space_worker import SpaceWorker, loose_reading, loose_state, packed, sampled
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.batch import Sample
from sglang.srt.core.ints import from_bytes, ints
from sglang.srt.core.messages import Event
from sglang.srt.core.space_messages import (
    AllocPages,
    CloseSpace,
    CopyTokens,
    ExportPages,
    ForwardDone,
    ForwardTokens,
    FreePages,
    ImportPages,
    ListExports,
    OpenSpace,
    PrefixPages,
    ReleaseExport,
    SpaceEnded,
    SpaceEvent,
    SpaceFailed,
    SpaceReply,
)

GREEDY = SamplingParams(temperature=0.0)
TEXT = [3, 1, 4, 1, 5, 9, 2, 6]


def data(values: Any) -> bytes:
    return ints(values).tobytes()


@dataclass
class Program:
    """One space as its program knows it.

    Attributes:
        states: KV by slot, as it will be once all that was sent is computed.
        wanted: the answer to each pending forward, by request.
        replies: what verbs with a request were answered.
        failed: what was refused or lost.
        ended: how the space ended, where it did.
        adapter: number of its adapter.
    """

    desk: SpaceDesk
    space: int
    states: dict[int, int] = field(default_factory=dict)
    wanted: dict[int, ForwardDone] = field(default_factory=dict)
    answers: dict[int, ForwardDone] = field(default_factory=dict)
    replies: dict[int, SpaceReply] = field(default_factory=dict)
    failed: list[SpaceFailed] = field(default_factory=list)
    ended: SpaceEnded | None = None
    numbers: Any = field(default_factory=lambda: itertools.count(0))
    tokens: dict[int, int] = field(default_factory=dict)
    adapter: int = 0

    def send(self, verb: Any) -> bool:
        """Send a verb. Return whether it was not refused at once."""
        before = len(self.failed)
        self.desk.send(verb)
        return len(self.failed) == before and self.ended is None

    def alloc(self, *handles: int) -> bool:
        return self.send(AllocPages(self.space, data(handles)))

    def free(self, *handles: int) -> bool:
        if not self.send(FreePages(self.space, data(handles))):
            return False
        size = self.desk.size
        for slot in [slot for slot in self.states if slot // size in handles]:
            del self.states[slot]
        return True

    def copy(self, sources: list[int], targets: list[int]) -> bool:
        if not self.send(CopyTokens(self.space, data(sources), data(targets))):
            return False
        read = [self.states[slot] for slot in sources]
        self.states.update(zip(targets, read))
        return True

    def export(self, name: str, *handles: int) -> int:
        number = next(self.numbers)
        self.send(ExportPages(self.space, number, data(handles), name))
        return number

    def take(self, name: str, first: int, states: list[int]) -> int:
        """Import pages, whose tokens have these states."""
        number = next(self.numbers)
        if self.send(ImportPages(self.space, number, name, first)):
            self.states.update(enumerate(states, first * self.desk.size))
        return number

    def prefix(self, tokens: list[int], first: int) -> int:
        number = next(self.numbers)
        self.send(PrefixPages(self.space, number, data(tokens), first))
        return number

    def prefixed(self, tokens: list[int], first: int, count: int) -> None:
        """Note that the pages of a text have come."""
        size = self.desk.size
        states = Reader(tokens)._states[: count * size]
        self.states.update(enumerate(states, first * size))

    def forward(
        self, tokens: list[int], visible: Sequence[int] = (), written: Sequence[int] = (), *,
        answered: bool = True, **more: Any,
    ) -> int:  # fmt: skip
        """Send a forward and note what it has to answer. Return its request."""
        number = next(self.numbers) if answered else -1
        for name in ("positions", "history"):
            if name in more:
                more[name] = data(more[name])
        verb = ForwardTokens(
            self.space, number, data(tokens), visible=data(visible), written=data(written), **more
        )
        if self.send(verb):
            self._expect(verb, tokens, visible, written)
        return number

    def _expect(
        self, verb: ForwardTokens, tokens: list[int], visible: Sequence[int], written: Sequence[int]
    ) -> None:
        count, known = len(tokens), list(tokens)
        history = from_bytes(verb.history)
        if verb.follows >= 0:
            known[0] = self.tokens[verb.follows]
            history = history + ints([known[0]])
        positions = from_bytes(verb.positions) or range(len(visible), len(visible) + count)
        before = [self.states[slot] for slot in visible]
        width = len(visible) + count
        sees = np.tri(count, width, len(visible), dtype=bool)
        if verb.mask:
            rows = np.frombuffer(verb.mask, dtype=np.uint8).reshape(count, -1)
            sees &= np.unpackbits(rows, axis=1, count=width, bitorder="little").astype(bool)
        own: list[int] = []
        seen: list[int] = []
        for i, token in enumerate(known):
            everything = before + own
            seen = [state for j, state in enumerate(everything) if sees[i, j]]
            own.append(loose_state(seen, token + ADAPTED * self.adapter, positions[i]))
        self.states.update(zip(written, own))
        reading = loose_reading([*seen, own[-1]])
        done = ForwardDone(self.space, verb.request)
        token, logprob = -1, 0.0
        if verb.sample is not None:
            sample = Sample(verb.sample, verb.uniform, history, mask=verb.allowed or None)
            token = sampled(reading, sample)
            logprob = logprob_at(reading, token) if verb.top != -1 else 0.0
            self.tokens[verb.request] = token
        ids, logprobs = packed(reading, verb.top) if verb.top not in (-1, 0) else (b"", b"")
        probe = array("f", [logprob_at(reading, t) for t in verb.probe]).tobytes()
        done = ForwardDone(self.space, verb.request, token, logprob, ids, logprobs, probe)
        if verb.request >= 0:
            self.wanted[verb.request] = done

    def take_event(self, event: SpaceEvent) -> None:
        if isinstance(event, ForwardDone):
            assert event == self.wanted.pop(event.request), "another answer than by the definition"
            self.answers[event.request] = event
        elif isinstance(event, SpaceReply):
            self.replies[event.request] = event
        elif isinstance(event, SpaceFailed):
            self.failed.append(event)
            if event.request in self.wanted:
                del self.wanted[event.request]
        else:
            self.ended = event
            self.wanted.clear()


class SpaceDesk(Desk):
    """An engine with spaces.

    Attributes:
        programs: by space.
        ends: spaces in the order in which they ended by no verb of theirs.
    """

    def __init__(self, capacity: int = 256, page_size: int = 1, *, depth: int = 1,
                 worker: SpaceWorker | None = None, **schedule: Any) -> None:  # fmt: skip
        self.size = page_size
        self.programs: dict[int, Program] = {}
        self.ends: list[int] = []
        worker = worker or SpaceWorker(page_size)
        super().__init__(capacity, page_size, worker=worker, depth=depth, **schedule)
        self.worker: SpaceWorker = worker

    def program(self, **settings: Any) -> Program:
        """Open a space."""
        number = next(self._ids)
        self.programs[number] = Program(self, number)
        self.send(OpenSpace(number, **settings))
        return self.programs[number]

    def _sort(self, events: list[Event]) -> None:
        rest: list[Event] = []
        for event in events:
            if isinstance(event, SpaceEvent):
                if isinstance(event, SpaceEnded):
                    self.ends.append(event.space)
                self.programs[event.space].take_event(event)
            else:
                rest.append(event)
        super()._sort(rest)


def finish(desk: SpaceDesk) -> None:
    """Close all spaces and release all exports: nothing may be left."""
    for program in desk.programs.values():
        assert not program.wanted, "a forward has no answer"
    namespaces = {p.space for p in desk.programs.values() if p.ended is None}
    for space in namespaces:
        desk.send(ListExports(space, 10**6))
        for name in desk.programs[space].replies[10**6].names:
            desk.send(ReleaseExport(space, 10**6 + 1, name))
        desk.send(CloseSpace(space))
    desk.engine.store.check()
    desk.finish()


def filled(desk: SpaceDesk, count: int = 8, **settings: Any) -> Program:
    """A space whose slots [0, count) hold a text."""
    program = desk.program(**settings)
    assert program.alloc(*range(count))
    program.forward(TEXT[:count], written=list(range(count)))
    return program


def refused(program: Program, action: Callable[[], object]) -> str:
    before = len(program.failed)
    action()
    assert len(program.failed) == before + 1
    return program.failed[-1].message
