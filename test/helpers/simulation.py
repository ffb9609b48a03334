"""Random histories of the real engine, scheduler and memory over a fake worker.

A history is a function of its seed. After every step the books are audited; at the end every request
has had one terminal event, every text equals the one computed alone, and no page is in use.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from helpers.fake_worker import EOS, TOKEN_BYTES, VOCAB, FakeWorker, fake_info, logprob, next_token
from srt.config import POLICIES, ScheduleConfig
from srt.core.ints import ints
from srt.core.messages import (
    Advance,
    Append,
    Close,
    Distribution,
    Done,
    Failed,
    Fill,
    Fork,
    Generate,
    Open,
    Prompt,
    Score,
    Tokens,
    Truncate,
)
from srt.core.sampling import SamplingParams
from srt.engine.engine import Engine


@dataclass
class Asked:
    """A request under way, as the client sees it."""

    context: int
    goal: object
    prompt: list[int]
    drawn: list[int] = field(default_factory=list)
    scores: list[float | None] | None = None


def expected(prompt: list[int], sampling: SamplingParams) -> list[int]:
    """The text of a generation on its own."""
    tokens, out = list(prompt), []
    while len(out) < sampling.max_new_tokens:
        token = next_token(tokens)
        ends = {*sampling.stop_token_ids} | (set() if sampling.ignore_eos else {EOS})
        if len(out) < sampling.min_new_tokens:
            while token in ends:
                token = (token + 1) % VOCAB
        tokens.append(token)
        out.append(token)
        if token in ends:
            break
    return out


class History:
    """One random history. ``run()`` raises AssertionError where a promise is broken."""

    def __init__(self, seed: int, audit: bool = True) -> None:
        r = self.random = random.Random(seed)
        self.audit = audit
        page_size = r.choice([1, 1, 1, 2, 4])
        pages = r.randint(10, 60)
        self.capacity = pages * page_size
        max_running = r.choice([1, 2, 4, 16])
        self.schedule = ScheduleConfig(
            schedule_policy=r.choice(POLICIES),
            chunked_prefill_size=r.choice([1, 3, 8, 32, -1]),
            max_running_requests=max_running,
            max_queued_requests=100_000,
            max_overtakes=r.choice([0, 1, 3, 10]),
        )
        steps = range(1, 200)
        faulty = r.random() < 0.15
        self.worker = FakeWorker(
            page_size,
            fail_at={s for s in steps if faulty and r.random() < 0.05},
            break_at={s for s in steps if faulty and r.random() < 0.05},
        )
        self.faulty = faulty
        self.engine = Engine(
            self.worker,
            fake_info(self.capacity, page_size, max_running),
            self.schedule,
            TOKEN_BYTES,
            share=r.random() < 0.9,
            seed=seed,
        )
        self.stems = [[r.randrange(VOCAB) for _ in range(r.randint(1, 12))] for _ in range(3)]
        self.asked: dict[int, Asked] = {}
        self.contexts: dict[int, list[int]] = {}  # idle and busy ones, as the client believes
        self.ended: dict[int, str] = {}
        self.numbers = iter(range(1, 1 << 30))
        self.most_overtaken = 0

    def run(self, requests: int = 0) -> History:
        target = requests or self.random.randint(2, 14)
        asked = quiet = 0
        while asked < target or self.engine.busy:
            if asked < target and self.random.random() < 0.5:
                for _ in range(min(self.random.choice([1, 1, 2, 6]), target - asked)):
                    self._act()
                    asked += 1
            if self.asked and self.random.random() < 0.06:
                self._abort()
            busy, before = self.engine.busy, self.worker.passes
            events = self.engine.step()
            self._take(events)
            moved = self.worker.passes > before or events
            quiet = 0 if moved or not busy else quiet + 1
            assert not quiet, "the engine is busy and does nothing"
            if self.audit:
                self.engine.store.check()
            for request in self.engine.waiting.values():
                self.most_overtaken = max(self.most_overtaken, request.overtaken)
        self._finish()
        return self

    # -- the client ------------------------------------------------------------------------------

    def _act(self) -> None:
        r = self.random
        busy = {a.context for a in self.asked.values()}
        idle = [c for c in self.contexts if c not in busy]
        verbs: list[object] = []
        if idle and r.random() < 0.4:
            context = r.choice(idle)
            tokens = self.contexts[context]
            kind = r.random()
            if kind < 0.4:
                child = next(self.numbers)
                length = r.randint(1, len(tokens))
                verbs.append(Fork(context, child, length))
                self.contexts[child] = tokens[:length]
                context = child
            elif kind < 0.6 and len(tokens) > 1:
                length = r.randint(1, len(tokens))
                verbs.append(Truncate(context, length))
                del tokens[length:]
            else:
                more = [r.randrange(VOCAB) for _ in range(r.randint(1, 4))]
                verbs.append(Append(context, ints(more).tobytes()))
                tokens += more
        else:
            context = next(self.numbers)
            tokens = list(r.choice(self.stems)[: r.randint(1, 12)])
            tokens += [r.randrange(VOCAB) for _ in range(r.randint(0, 6))]
            self.contexts[context] = tokens
            space = r.choice(["", "", "", "salt"])
            verbs.append(Open(context, ints(tokens).tobytes(), space))
        self._advance(context, verbs)

    def _advance(self, context: int, verbs: list[object]) -> None:
        r = self.random
        tokens = self.contexts[context]
        kind = r.random()
        goal: object
        if kind < 0.7:
            most = r.randint(1, 10)
            sampling = SamplingParams(
                max_new_tokens=most, min_new_tokens=r.randint(0, most), temperature=0.0,
                stop_token_ids=tuple(r.sample(range(VOCAB), r.choice([0, 0, 8]))),
                ignore_eos=r.random() < 0.5,
            )  # fmt: skip
            goal = Generate(sampling, score_from=r.choice([-1, -1, 0, len(tokens) // 2]))
        elif kind < 0.8:
            goal = Score(start=r.randint(0, len(tokens)))
        elif kind < 0.9:
            goal = Fill()
        else:
            goal = Distribution(top=1)
        request = next(self.numbers)
        priority = r.choice([0, 0, 1])
        verbs.append(Advance(context, request, goal, priority, close=r.random() < 0.5))
        self.asked[request] = Asked(context, goal, list(tokens))
        self._take(self.engine.handle(verbs))  # type: ignore[arg-type]

    def _abort(self) -> None:
        request = self.random.choice(list(self.asked))
        context = self.asked[request].context
        events = self.engine.handle([Close(context)])
        assert [type(e) for e in events] == [Done], "an abort ends its request"
        assert isinstance(events[0], Done)
        assert events[0].reason == "abort"
        self._take(events)
        self.contexts.pop(context, None)

    def _take(self, events: list[object]) -> None:  # type: ignore[type-arg]
        for event in events:
            asked = self.asked[event.request]  # KeyError: an event after the terminal one
            if isinstance(event, Tokens):
                asked.drawn += event.tokens
                self.contexts[asked.context] += event.tokens
            elif isinstance(event, Prompt):
                assert asked.scores is None, "the prompt was reported twice"
                asked.scores = event.logprobs
            else:
                del self.asked[event.request]
                assert event.request not in self.ended
                self._ended(asked, event)
                if asked.context not in self.engine.store.contexts:
                    self.contexts.pop(asked.context, None)

    def _ended(self, asked: Asked, event: Done | Failed) -> None:
        if isinstance(event, Failed):
            self.ended[event.request] = event.code
            over = len(asked.prompt) + getattr(getattr(asked.goal, "sampling", None),
                                               "max_new_tokens", 0) > self.capacity  # fmt: skip
            assert over if event.code == "invalid" else self.faulty, event.message
            return
        self.ended[event.request] = event.reason
        if event.reason == "abort":
            return
        goal = asked.goal
        if isinstance(goal, Generate):
            assert asked.drawn == expected(asked.prompt, goal.sampling), "the text has changed"
            assert event.completion == len(asked.drawn)
        start = goal.start if isinstance(goal, Score) else getattr(goal, "score_from", -1)
        if start >= 0:
            want = [
                None if i == 0 else logprob(asked.prompt[:i], asked.prompt[i])
                for i in range(start, len(asked.prompt))
            ]
            assert (asked.scores or []) == want, f"scores have changed: {asked} {want}"
        if isinstance(goal, Distribution):
            assert event.top == [(next_token(asked.prompt), -0.5)]

    def _finish(self) -> None:
        engine, store = self.engine, self.engine.store
        assert not self.asked, "a request without a terminal event"
        assert store.protected == 0, "memory is held though nothing runs"
        engine.handle([Close(c) for c in list(store.contexts)])
        assert not store.contexts
        store.check()
        store.flush()
        assert store.pool.free == store.pool.size, "pages lost"
        s = engine.stats
        assert s.received == s.finished + s.aborted + s.failed
        assert s.plan_misses == 0, "the plan counted on memory that was not there"
        assert s.bad_verbs == 0
        bound = self.schedule.max_overtakes + self.schedule.max_running_requests
        if self.schedule.schedule_policy != "priority":
            assert self.most_overtaken <= bound, "starvation beyond the bound"
