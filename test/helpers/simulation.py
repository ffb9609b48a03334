"""Random histories of the real engine, scheduler and memory over a fake worker.

A history is a function of its seed. After every step the books are audited; at the end every
request has had one terminal event, every text equals the one computed alone, no request was
overtaken beyond the bound and no page is in use. ``simulate`` names the seed of a history that
breaks a promise.

In half of the histories two passes are under way at a time. Some of those are computed when they
are given, and some when their result is asked for: the engine may not notice.
"""

from __future__ import annotations

import random
from array import array
from collections import Counter
from dataclasses import dataclass, field

from helpers.either import Either
from helpers.fake_worker import (
    ECHO,
    EOS,
    TOKEN_BYTES,
    VOCAB,
    Corrupt,
    FakeWorker,
    Guesser,
    draw,
    fake_info,
    hidden_state,
    logprob,
    next_token,
)
from helpers.toy_grammar import ToyGrammars, allowed, bits
from srt.config import ScheduleConfig
from srt.config.sections import POLICIES
from srt.core.constraint import Constraint
from srt.core.ints import ints
from srt.core.messages import (
    Advance,
    Append,
    Close,
    Control,
    Distribution,
    Done,
    Embed,
    Event,
    Failed,
    Fill,
    Fork,
    Generate,
    Goal,
    Open,
    Prompt,
    Reply,
    Score,
    Tokens,
    Truncate,
    Verb,
)
from srt.core.sampling import SamplingParams
from srt.engine.draft_model import ModelDrafter
from srt.engine.drafts import Drafts
from srt.engine.engine import Engine
from srt.engine.executor import Inline
from srt.engine.rows import uniform
from srt.schedule.scheduler import Reserve


def simulate(seed: int) -> History:
    """Run one history. Raises AssertionError, naming the seed, where a promise is broken."""
    try:
        return History(seed).run()
    except (Exception, Corrupt) as error:
        raise AssertionError(
            f"history {seed} broke a promise: {type(error).__name__}: {error} "
            f"(replay: SIMULATION_FIRST={seed} SIMULATION_HISTORIES=1)"
        ) from error


@dataclass
class Asked:
    """A request under way, as the client sees it."""

    context: int
    goal: Goal
    prompt: list[int]
    drawn: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    scores: list[float | None] | None = None
    told: int = 0  # times

    @property
    def seldom(self) -> bool:
        return isinstance(self.goal, Generate) and self.goal.interval > 1


@dataclass
class Text:
    """How a generation must end."""

    tokens: list[int]
    reason: str = "length"
    matched: str | int | None = None
    cut: int = -1


def expected(prompt: list[int], sampling: SamplingParams) -> Text:
    """The text of a generation on its own, by the plainest code."""
    tokens, out, text = list(prompt), Text([]), b""
    eos = set() if sampling.ignore_eos else {EOS}
    ends = {*sampling.stop_token_ids} | eos
    grammar = int(sampling.constraint.text) if sampling.constraint else None
    while len(out.tokens) < sampling.max_new_tokens:
        ids = None if grammar is None else allowed(grammar, tuple(out.tokens))
        if ids == {EOS}:
            out.reason = "stop"
            break
        barred = ends if len(out.tokens) < sampling.min_new_tokens else set()
        if grammar is not None and sampling.ignore_eos:
            barred = barred | {EOS}
        token = draw(
            tokens,
            sampling,
            uniform(sampling.seed or 0, len(out.tokens)),
            out.tokens if sampling.penalised else (),
            prompt if sampling.repetition_penalty != 1.0 else (),
            barred,
            None if ids is None else bits(ids),
        )
        if token < 0:
            out.reason = "error"
            break
        tokens.append(token)
        out.tokens.append(token)
        before, text = len(text), text + TOKEN_BYTES[token]
        if token in ends:
            out.reason, out.matched, out.cut = "stop", token, before
            break
        found = [(text.index(s.encode()), s) for s in sampling.stop if s.encode() in text]
        if found:
            out.cut, out.matched = min(found)
            out.reason = "stop"
            break
        if grammar is not None and allowed(grammar, tuple(out.tokens)) == {EOS}:
            out.reason = "stop"
            break
    return out


@dataclass(frozen=True)
class Shape:
    """How much a history asks for."""

    requests: int
    prompt: int
    growth: int
    burst: int


class History:
    """One random history. ``seen`` counts what happened in it."""

    def __init__(self, seed: int) -> None:
        r = self.random = random.Random(seed)
        self.intervals = random.Random(seed)  # of its own: the rest is as it is without them
        self.seen: Counter[str] = Counter()
        tight = r.random() < 0.6
        if tight:  # many requests that grow long, in a memory that holds one or two of them
            self.shape = Shape(r.randint(6, 20), prompt=8, growth=24, burst=8)
        else:
            self.shape = Shape(r.randint(2, 12), prompt=14, growth=10, burst=4)
        page_size = r.choice([1, 1, 2, 4])
        longest = self.shape.prompt + self.shape.growth
        pages = r.randint(longest, (2 if tight else 3) * longest) // page_size + 1
        self.capacity = pages * page_size
        self.schedule = ScheduleConfig(
            schedule_policy=r.choice(POLICIES),
            chunked_prefill_size=r.choice([1, 3, 8, 32, -1]),
            max_running_requests=r.choice([4, 16] if tight else [1, 2, 4, 16]),
            max_queued_requests=100_000,
            max_overtakes=r.choice([0, 1, 3, 10]),
        )
        self.faulty = r.random() < 0.15
        steps = range(1, 200) if self.faulty else ()
        self.worker = FakeWorker(
            page_size,
            fail_at={s for s in steps if r.random() < 0.05},
            break_at={s for s in steps if r.random() < 0.05},
        )
        share = r.random() < 0.9
        jumps = r.choice(["exact", "exact", "off"])
        drafts = self._drafts(jumps, share)
        info = fake_info(
            self.capacity, page_size, self.schedule.max_running_requests,
            draft="fake" if self.model else "",
        )  # fmt: skip
        self.grammars = ToyGrammars(seed)
        self.executor = Inline(self.worker) if seed % 2 else Either(self.worker, seed)
        self.engine = Engine(
            self.executor, info, self.schedule, TOKEN_BYTES, share=share, seed=seed,
            grammars=self.grammars, jumps=jumps, drafts=drafts,
        )  # fmt: skip
        if tight and r.random() < 0.5:  # an optimist, who must retract
            self.engine.planner.reserve = Reserve(share=0.0, low=0.0, step_up=0.0)
        self._count_splits()
        self.seen["histories"] += 1
        self.seen["histories of large pages"] += page_size > 1
        self.stems = [[r.randrange(VOCAB) for _ in range(12)] for _ in range(2)]
        if r.random() < 0.5:
            self.stems[0][0] = ECHO
        self.asked: dict[int, Asked] = {}
        self.contexts: dict[int, list[int]] = {}  # idle and busy ones, as the client believes
        self.spaces: dict[int, str] = {}
        self.ended: dict[int, str] = {}
        self.numbers = iter(range(1, 1 << 30))
        self.most_overtaken = 0
        self.bound = 0  # of passes: were nothing shared and nothing batched

    def _drafts(self, jumps: str, share: bool) -> Drafts:
        """Who guesses: now and then a draft model, whose memory may be much too small."""
        r = self.random
        self.model: ModelDrafter | None = None
        if r.random() < 0.5:
            room = r.choice([20, 60, 2 * self.capacity])
            guesser = Guesser(
                r.choice([2, 5, 1000]), {r.randint(5, 60)} if self.faulty else None
            )  # fmt: skip
            self.model = ModelDrafter(guesser, fake_info(room, 1), r.choice([-1, 3]), share)
        default = r.choice(["none", "ngram", *(["draft"] if self.model else [])])
        return Drafts(jumps, default, r.choice([1, 4, 16]), r.choice([3, 64]), self.model)

    def run(self) -> History:
        r, engine = self.random, self.engine
        asked = 0
        while asked < self.shape.requests or engine.busy or engine.compiling:
            self.grammars.pass_time()
            self._take(engine.handle([]))
            if asked < self.shape.requests and r.random() < 0.5:
                for _ in range(min(r.randint(1, self.shape.burst), self.shape.requests - asked)):
                    self._act()
                    asked += 1
            if self.asked and r.random() < 0.06:
                self._abort()
            if r.random() < 0.04:
                self._flush()
            oldest = min(engine.running.values(), key=lambda q: q.arrival, default=None)
            busy, before, failed = engine.busy, self._state(), engine.stats.failed_passes
            events = engine.step()
            self._take(events)
            failed = engine.stats.failed_passes - failed
            moved = self._state() != before or events
            assert moved or not busy, "the engine is busy and does nothing"
            assert engine.stats.passes <= self.bound, "requests undo each other's work"
            if oldest is not None and not failed:
                assert oldest.id not in engine.waiting, "the oldest request gave way"
            engine.store.check()
            if self.model is not None:
                self.model.store.check()
            self._check_matches()
            for request in engine.waiting.values():
                self.most_overtaken = max(self.most_overtaken, request.overtaken)
        self._finish()
        return self

    def _state(self) -> tuple[int, int]:
        """What a step changes: passes planned, passes under way."""
        return self.engine.planner.step_number, len(self.engine._under_way)

    # -- the client ------------------------------------------------------------------------------

    def _act(self) -> None:
        """One more request: on a new context, a fork, or an idle context made longer or shorter."""
        r = self.random
        busy = {a.context for a in self.asked.values()}
        idle = [c for c in self.contexts if c not in busy]
        verbs: list[Verb] = []
        kind = r.random()
        if self.contexts and kind < 0.2:  # a parent may be busy: its KV so far is shared
            parent = r.choice(idle if idle and r.random() < 0.6 else list(self.contexts))
            context, tokens = next(self.numbers), self.contexts[parent]
            length = r.choice([-1, r.randint(1, len(tokens))])
            if any(a.context == parent and a.seldom for a in self.asked.values()):
                length = abs(length)  # it may have tokens which the client was not told of
            verbs.append(Fork(parent, context, length))
            self.contexts[context] = tokens[: length if length > 0 else None]
            self.spaces[context] = self.spaces[parent]
            self.seen["forks of busy contexts" if parent in busy else "forks of idle contexts"] += 1
        elif idle and kind < 0.3:
            context = r.choice(idle)
            length = r.randint(1, len(self.contexts[context]))
            verbs.append(Truncate(context, length))
            del self.contexts[context][length:]
        elif idle and kind < 0.45:
            context = r.choice(idle)
            more = [r.randrange(VOCAB) for _ in range(r.randint(1, 4))]
            verbs.append(Append(context, ints(more).tobytes()))
            self.contexts[context] += more
        else:
            context = next(self.numbers)
            tokens = list(r.choice(self.stems)[: r.randint(1, self.shape.prompt)])
            tokens += [r.randrange(VOCAB) for _ in range(r.randint(0, 4))]
            self.contexts[context] = tokens
            self.spaces[context] = r.choice(["", "", "", "salt"])
            verbs.append(Open(context, ints(tokens).tobytes(), self.spaces[context]))
        self._advance(context, verbs)

    def _advance(self, context: int, verbs: list[Verb]) -> None:
        r = self.random
        tokens = self.contexts[context]
        goal = self._goal(len(tokens))
        request = next(self.numbers)
        verbs.append(Advance(context, request, goal, r.choice([0, 0, 1]), close=r.random() < 0.3))
        self.asked[request] = Asked(context, goal, list(tokens))
        self.bound += len(tokens) + self._growth(goal) + 1
        self.seen["requests"] += 1
        self._take(self.engine.handle(verbs))

    def _goal(self, length: int) -> Goal:
        r = self.random
        kind = r.random()
        if kind < 0.76:
            most = r.randint(1, self.shape.growth)
            sampling = SamplingParams(
                max_new_tokens=most,
                min_new_tokens=r.choice([0, most, r.randint(0, most)]),
                temperature=r.choice([0.0, 1.0]),
                seed=r.randrange(1 << 40),
                speculation=r.choice(
                    ["auto", "off", "ngram", "ngram", *(["draft", "draft"] if self.model else [])]
                ),
                frequency_penalty=r.choice([0.0, 0.0, 0.5]),
                repetition_penalty=r.choice([1.0, 1.0, 1.5]),
                stop_token_ids=tuple(r.sample(range(VOCAB), r.choice([0, 0, 0, 4]))),
                stop=tuple(chr(r.randrange(33, 123)) for _ in range(r.choice([0, 0, 0, 2]))),
                ignore_eos=r.random() < 0.5,
                constraint=self._constraint(),
            )
            top = r.choice([-1, -1, 0, 2])
            start = r.choice([-1, -1, 0, length // 2]) if top >= 0 else -1
            return Generate(sampling, top, start, interval=self.intervals.choice([1, 1, 3, 32]))
        if kind < 0.84:
            return Score(start=r.randint(0, length))
        if kind < 0.94:
            return Fill() if kind < 0.89 else Distribution(top=1)
        return Embed(r.choice(["last", "mean"]))

    def _constraint(self) -> Constraint | None:
        if self.random.random() < 0.6:
            return None
        bad = self.random.random() < 0.03
        return Constraint("regex", "bad" if bad else str(self.random.randrange(1 << 30)))

    @staticmethod
    def _growth(goal: Goal) -> int:
        return goal.sampling.max_new_tokens if isinstance(goal, Generate) else 0

    def _abort(self) -> None:
        retracted = [n for n in self.asked if n in self.engine.waiting and
                     self.engine.waiting[n].passes]  # fmt: skip
        number = self.random.choice(retracted or list(self.asked))
        context = self.asked[number].context
        waiting = self.engine.waiting.get(number)
        state = "running" if waiting is None else "retracted" if waiting.passes else "waiting"
        self.seen[f"aborts of {state} requests"] += 1
        events = self.engine.handle([Close(context)])
        end = events[-1]
        assert isinstance(end, Done), "an abort ends its request"
        assert end.reason == "abort"
        self.seen["aborts that tell what was drawn"] += len(events) > 1
        self._take(events)
        self.contexts.pop(context, None)

    def _flush(self) -> None:
        busy = bool(self.asked)
        (reply,) = self.engine.handle([Control(1, "flush")])
        assert isinstance(reply, Reply)
        assert reply.ok is not busy, "only an idle engine can be flushed"
        self.seen["flushes"] += reply.ok

    def _take(self, events: list[Event]) -> None:
        for event in events:
            assert not isinstance(event, Reply)
            assert event.request in self.asked, "an event of a request that has ended"
            asked = self.asked[event.request]
            if isinstance(event, Tokens):
                assert event.tokens, "an event of nothing"
                asked.drawn += event.tokens
                asked.told += 1
                asked.logprobs += event.logprobs
                self.contexts[asked.context] += event.tokens
            elif isinstance(event, Prompt):
                assert asked.scores is None, "the prompt was reported twice"
                asked.scores = event.logprobs
            else:
                del self.asked[event.request]
                assert event.request not in self.ended
                self._ended(asked, event)
                context = self.engine.store.contexts.get(asked.context)
                if context is None:
                    self.contexts.pop(asked.context, None)
                else:
                    known = self.contexts[asked.context]
                    assert list(context.tokens) == known, "its tokens are not those told of"

    def _ended(self, asked: Asked, event: Done | Failed) -> None:
        goal = asked.goal
        if isinstance(event, Failed):
            self.ended[event.request] = event.code
            over = len(asked.prompt) + self._growth(goal) > self.capacity
            over = over or "is bad" in event.message
            assert over if event.code == "invalid" else self.faulty, event.message
            return
        self.ended[event.request] = event.reason
        if isinstance(goal, Generate):
            assert event.completion == len(asked.drawn), "tokens that nobody was told of"
        if event.reason == "abort":
            return
        assert event.prompt == len(asked.prompt)
        assert event.cached <= event.prompt
        if isinstance(goal, Generate):
            want = expected(asked.prompt, goal.sampling)
            assert asked.drawn == want.tokens, "the text has changed"
            if asked.seldom and goal.sampling.constraint is None:
                assert asked.told <= 2 + event.completion // goal.interval, "told too often"
            assert event.accepted <= min(event.drafted, event.completion)
            self.seen["forced tokens"] += event.forced
            self.seen["accepted drafts"] += event.accepted
            self.seen["rejected drafts"] += event.drafted - event.accepted
            if event.accepted and not goal.sampling.constraint:
                self.seen[f"texts drafted by {goal.sampling.speculation}"] += 1
            self.seen["dead ends"] += event.reason == "error"
            self._check_logprobs(asked)
            assert (event.reason, event.matched, event.cut) == (want.reason, want.matched, want.cut)
        start = goal.start if isinstance(goal, Score) else getattr(goal, "score_from", -1)
        if start >= 0:
            scores = [
                None if i == 0 else logprob(asked.prompt[:i], asked.prompt[i])
                for i in range(start, len(asked.prompt))
            ]
            assert asked.scores == scores, "log-probabilities of the prompt have changed"
        if isinstance(goal, Distribution):
            assert event.top == [(next_token(asked.prompt), -0.5)]
        if isinstance(goal, Embed):
            self._check_embedding(asked, goal, event.embedding)

    def _check_embedding(self, asked: Asked, goal: Embed, found: bytes) -> None:
        places = range(1 if goal.pooling == "mean" else len(asked.prompt), len(asked.prompt) + 1)
        states = [hidden_state(asked.prompt[:i]) for i in places]
        want = array("f", [sum(column) / len(states) for column in zip(*states)])
        assert found == want.tobytes(), "an embedding has changed"
        self.seen[f"embeddings by {goal.pooling}"] += 1

    def _check_logprobs(self, asked: Asked) -> None:
        """One for every drawn token, that of the token."""
        assert isinstance(asked.goal, Generate)
        if asked.goal.top < 0:
            assert not asked.logprobs
            return
        tokens = asked.prompt + asked.drawn
        first = len(asked.prompt)
        want = [logprob(tokens[:i], tokens[i]) for i in range(first, len(tokens))]
        assert asked.logprobs == want, "log-probabilities have changed"

    # -- the end ---------------------------------------------------------------------------------

    def _finish(self) -> None:
        engine, store, s = self.engine, self.engine.store, self.engine.stats
        if self.model is not None:
            self.seen["passes of draft models"] += self.model.passes
            assert not self.model.store.contexts, "a shadow is left"
            self.model.store.flush()
            assert self.model.store.pool.free == self.model.store.pool.size, "its pages are lost"
        assert not self.asked, "a request without a terminal event"
        assert store.protected == 0, "memory is held though nothing runs"
        assert set(store.contexts) == set(self.contexts), "a context is left, or closed too early"
        engine.handle([Close(c) for c in list(store.contexts)])
        assert not store.contexts
        store.check()
        store.flush()
        assert store.pool.free == store.pool.size, "pages lost"
        assert s.received == s.finished + s.aborted + s.failed
        assert s.plan_misses == 0, "the plan counted on memory that was not there"
        assert s.bad_verbs == 0
        bound = self.schedule.max_overtakes + self.schedule.max_running_requests
        if self.schedule.schedule_policy == "fcfs":
            assert self.most_overtaken == 0, "first come was not first served"
        if self.schedule.schedule_policy != "priority":
            assert self.most_overtaken <= bound, "starvation beyond the bound"
        self.seen.update(
            retractions=s.retractions,
            evictions=store.tree.evicted,
            passes=s.passes,
            overtakes=self.most_overtaken,
        )
        self.seen["failed passes"] += s.failed_passes
        self.seen["failed requests"] += s.failed
        self.seen["cached tokens"] += s.cached_tokens
        self.seen["rows sharing within a pass"] += self.worker.shared_in_pass
        self.seen["rows that follow"] += self.worker.followed
        self.seen["histories that retract"] += s.retractions > 0
        self.seen["refused requests"] += s.rejected

    def _check_matches(self) -> None:
        """Matches that the engine remembers and would use are those it would find."""
        engine = self.engine
        if engine.planner._matched_at == engine.store.tree.version:
            for number, found in engine.planner._matches.items():
                request = engine.waiting.get(number)
                if request is not None:
                    now = engine.store.match(request.context, request.match_limit)
                    assert found == now, "a remembered match is stale"

    def _count_splits(self) -> None:
        tree = self.engine.store.tree
        split = tree._split

        def counted(*arguments):  # type: ignore[no-untyped-def]
            self.seen["splits"] += 1
            return split(*arguments)

        tree._split = counted  # type: ignore[method-assign]
