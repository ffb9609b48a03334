"""A client's view of an engine without asyncio: verbs in, events sorted by request."""

from __future__ import annotations

import itertools
from typing import Any

from helpers.either import Either
from helpers.fake_worker import TOKEN_BYTES, FakeWorker, fake_info
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import ScheduleConfig
from sglang.srt.core.clock import ManualClock
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import (
    Advance,
    Close,
    Done,
    Event,
    Failed,
    Generate,
    Goal,
    Open,
    PromptChunk,
    Reply,
    Tokens,
    Verb,
)
from sglang.srt.core.space_messages import SpaceEnded
from sglang.srt.engine.admission import Grammars
from sglang.srt.engine.drafts import Drafts
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Inline

GOAL = ("top", "score_from", "probe", "interval", "since", "generated")  # fields of the goal itself


def generate(most: int = 8, **changes: Any) -> Generate:
    """A greedy generation of ``most`` tokens that no end token stops."""
    own = {k: changes.pop(k) for k in GOAL if k in changes}
    settings = {"temperature": 0.0, "ignore_eos": True, **changes}
    return Generate(SamplingParams(max_new_tokens=most, **settings), **own)


def joined(runs: list[PromptChunk]) -> PromptChunk:
    """A whole report of log-probabilities. Its runs follow one another."""
    whole = PromptChunk(runs[0].request, runs[0].start)
    for run in runs:
        assert run.start == whole.start + len(whole.logprobs), "a run is missing or comes twice"
        whole.logprobs += run.logprobs
        whole.tops += run.tops
        whole.probes += run.probes
    return whole


class Desk:
    """An engine over a fake worker, with every event that came out of it."""

    def __init__(self, capacity: int = 4096, page_size: int = 1, *, share: bool = True,
                 worker: FakeWorker | None = None, grammars: Grammars | None = None,
                 jumps: str = "exact", depth: int = 1, drafts: Drafts | None = None,
                 host: int = 0, **schedule: Any) -> None:  # fmt: skip
        settings = ScheduleConfig(**schedule)
        self.worker = worker or FakeWorker(page_size)
        self.clock = ManualClock()
        info = fake_info(
            capacity, page_size, settings.max_running_requests, draft="any", host_capacity=host
        )
        self.engine = EngineCore(
            Either(self.worker, depth=depth) if depth > 1 else Inline(self.worker),
            info, settings, TOKEN_BYTES, share=share,
            grammars=grammars, jumps=jumps, drafts=drafts, clock=self.clock,
        )  # fmt: skip
        self.events: dict[int, list[Event]] = {}
        self.replies: list[Reply] = []
        self._ids = itertools.count(1)

    def send(self, *verbs: Verb) -> None:
        self._sort(self.engine.handle(list(verbs)))

    def step(self) -> None:
        self._sort(self.engine.step())

    def run(self, most: int = 10_000) -> None:
        """Step until the engine is idle. The books are audited after every step."""
        for _ in range(most):
            if self.engine.busy:
                self.step()
            elif self.engine.disk.pending:
                self.send()
            else:
                return
            self.engine.store.check()
        raise AssertionError(f"busy after {most} steps")

    def open(self, tokens: list[int], namespace: str = "") -> int:
        context = next(self._ids)
        self.send(Open(context, ints(tokens).tobytes(), namespace))
        return context

    def advance(self, context: int, goal: Goal | None = None, **more: Any) -> int:
        request = next(self._ids)
        self.send(Advance(context, request, goal or generate(), **more))
        return request

    def ask(self, tokens: list[int], goal: Goal | None = None, **more: Any) -> int:
        """A request on a context of its own, which goes with it."""
        return self.advance(self.open(tokens), goal, **{"close": True, **more})

    # -- results of a request ---------------------------------------------------------------------

    def end(self, request: int) -> Done | Failed:
        """The one terminal event."""
        events = self.events[request]
        ends = [event for event in events if isinstance(event, (Done, Failed))]
        assert len(ends) == 1, f"{len(ends)} terminal events"
        assert events[-1] is ends[0], "an event after the terminal one"
        return ends[0]

    def done(self, request: int) -> Done:
        end = self.end(request)
        assert isinstance(end, Done), end
        return end

    def failed(self, request: int) -> Failed:
        end = self.end(request)
        assert isinstance(end, Failed), end
        return end

    def news(self, request: int) -> list[Tokens]:
        return [e for e in self.events.get(request, []) if isinstance(e, Tokens)]

    def tokens(self, request: int) -> list[int]:
        return [token for event in self.news(request) for token in event.tokens]

    def prompt(self, request: int) -> PromptChunk:
        return joined([e for e in self.events[request] if isinstance(e, PromptChunk)])

    def finish(self) -> None:
        """Close everything; nothing may be left."""
        self.send(*[Close(number) for number in list(self.engine.store.contexts)])
        store, stats = self.engine.store, self.engine.stats
        store.check()
        store.flush()
        assert store.pool.free == store.pool.size, "pages lost"
        assert stats.received == stats.finished + stats.aborted + stats.failed
        for request in self.events:
            self.end(request)

    def _sort(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Reply):
                self.replies.append(event)
            else:
                assert not isinstance(event, SpaceEnded), "the desk has no spaces"
                self.events.setdefault(event.request, []).append(event)
