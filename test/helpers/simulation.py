"""Random histories of the real engine, scheduler and memory over a fake worker.

A history is a function of its seed. After every step the books are audited. At the end every
request has had one terminal event, every text equals the one computed alone (``reference``), no
request was overtaken beyond the bound and no page is in use. ``simulate`` names the seed of a
history that breaks a promise.

In a third of the histories the worker gets decoded copies of encoded batches.

In a quarter of the histories one pass is in flight at a time, in a quarter two, and in the others
three to five, as in a pipeline. Some of those are computed when they are submitted, and some when
their result is requested: the engine may not notice.
"""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
from helpers import reference
from helpers.capacity_oracle import CheckedCapacity, RandomHints
from helpers.desk import joined
from helpers.either import Either
from helpers.fake_disk import FakeDisk
from helpers.fake_worker import Corrupt, FakeWorker, Guesser, fake_info
from helpers.reference import Known, Text, expected
from helpers.toy_grammar import ToyGrammars
from helpers.wired import Wired
from helpers.wishes import TEXT, Kind, Wishes
from sglang.srt.config import ScheduleConfig
from sglang.srt.config.sections import PREFILL_BUDGETS
from sglang.srt.core.batch import Batch
from sglang.srt.core.call_hints import CallHint
from sglang.srt.core.clock import ManualClock
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import (
    Advance,
    Append,
    Close,
    Control,
    Distribution,
    Done,
    Embed,
    Event,
    Failed,
    ForkContext,
    Generate,
    Goal,
    LoadAdapter,
    Open,
    Park,
    PromptChunk,
    PromptProgress,
    Reply,
    Tokens,
    Truncate,
    UnloadAdapter,
    Verb,
)
from sglang.srt.core.request import Request
from sglang.srt.core.space_messages import SpaceEnded
from sglang.srt.core.work import STEP_SEARCH
from sglang.srt.core.workers import NO_MASKS, Masks
from sglang.srt.engine.draft_model import ModelDrafter
from sglang.srt.engine.drafts import Drafts
from sglang.srt.engine.engine_core import EngineCore
from sglang.srt.engine.executor import Inline
from sglang.srt.engine.masks import GrammarBudget
from sglang.srt.schedule.scheduler import Reserve

__all__ = ["FINDERS", "HISTORIES", "History", "expected", "simulate"]
HISTORIES = 500  # number that the test suite runs: seeds from 0 on
FINDERS = (
    856,
    864,
    2984,
    92037309,
)  # seeds of others that it runs: each alone finds a fault of test_mutations
NARROW = 1000  # from here on a quarter of the seeds have little room for copies or for grammars
NAMES = "xyz"  # names of adapters
MOST_LOADED, MOST_IN_PASS = 2, 1


def simulate(seed: int) -> History:
    """Run one history. Raises AssertionError, naming the seed, where a promise is broken."""
    try:
        return History(seed).run()
    except (Exception, Corrupt) as error:
        raise AssertionError(
            f"history {seed} broke a promise: {type(error).__name__}: {error} "
            f"(replay: make histories SEED={seed} COUNT=1)"
        ) from error


@dataclass
class Asked:
    """A request in flight, as the client sees it.

    Attributes:
        received, arrived: seconds of the manual clock; from the second on it counts as waiting.
        told: events with tokens. shown: bytes that a stream has shown by now.
        computed: prompt tokens that rows of this request have computed.
        at_tip: the first row that samples has been planned.
        overtaken: later requests that were admitted while this one waited.
    """

    id: int
    context: int
    goal: Goal
    prompt: Known
    close: bool
    received: float
    arrived: float
    hint: CallHint | None
    refusal: str = ""
    drawn: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    tops: list[Any] = field(default_factory=list)
    probes: list[list[float]] = field(default_factory=list)
    report: list[PromptChunk] = field(default_factory=list)
    prompt_ready: int = 0
    sampled: bool = False
    told: int = 0
    length: int = 0
    shown: int = 0
    computed: int = 0
    at_tip: bool = False
    overtaken: int = 0

    @property
    def reports_prompt(self) -> bool:
        return self.id % 4 == 0

    @property
    def seldom(self) -> bool:
        return isinstance(self.goal, Generate) and self.goal.interval > 1

    @property
    def probe(self) -> tuple[int, ...]:
        return getattr(self.goal, "probe", ())

    @property
    def features(self) -> set[str]:
        """Special features, for the counts of what histories contain."""
        known, found = self.prompt, set()
        if known.adapter > 0:
            found.add("an adapter")
        if known.salt:
            found.add("a salt")
        if known.keys:
            found.add("images")
        if known.segments:
            found.add("parts")
        if isinstance(self.goal, Generate):
            sampling = self.goal.sampling
            if sampling.stop or sampling.stop_regex:
                found.add("a watch")
            if sampling.penalised:
                found.add("penalties")
            if sampling.logit_bias:
                found.add("a bias")
            if not sampling.greedy and (sampling.top_k, sampling.top_p, sampling.min_p) != (
                -1, 1.0, 0.0,
            ):  # fmt: skip
                found.add("a cut distribution")
            if sampling.constraint is not None:
                found.add("a grammar")
            if self.goal.top >= 0 or self.goal.probe:
                found.add("log-probabilities")
        return found


class History:
    """One random history. ``seen`` counts what happened in it. ``host``: whether it may have host
    memory."""

    def __init__(self, seed: int, host: bool = True) -> None:
        r = self.random = random.Random(seed)
        self.seen: Counter[str] = Counter()
        kind = Kind.chosen(r)
        if seed >= NARROW and seed % 4 == 0:
            kind = kind.narrow(random.Random(f"narrow {seed}"))
        kind = self.kind = kind if host else replace(kind, host=0)
        self.faulty = kind.faulty
        few = 1 if seed % 2 else 2
        own = random.Random(f"depth {seed}")
        self.hints = RandomHints(seed)
        self.depth = own.choice([few, few, few, 3, 4, 5])
        self.schedule = ScheduleConfig(
            prefill_budget=own.choice(PREFILL_BUDGETS),
            schedule_policy=kind.policy, chunked_prefill_size=kind.chunk,
            max_running_requests=kind.running, max_queued_requests=kind.queue,
            max_overtakes=kind.overtakes, park_policy=kind.parking,
            latency_target_ms=self.hints.target_ms,
        )  # fmt: skip
        steps = range(1, 200) if kind.faulty else ()
        self.worker = FakeWorker(
            kind.page_size,
            fail_at={s for s in steps if r.random() < 0.1},
            break_at={s for s in steps if r.random() < 0.05},
        )
        self._attach_disk(seed)
        share = r.random() < 0.9
        jumps = r.choice(["exact", "exact", "off"])
        drafts = self._drafts(jumps, share)
        info = fake_info(
            kind.capacity, kind.page_size, kind.running, kind.context,
            draft="fake" if self.model else "", max_queued_requests=kind.queue,
            host_capacity=kind.host, vision=kind.media, lora=kind.adapters,
            max_loras_per_batch=MOST_IN_PASS, max_loaded_loras=MOST_LOADED,
        )  # fmt: skip
        self.clock = ManualClock()  # a second a step
        self.grammars = ToyGrammars(seed)
        worker = Wired(self.worker) if seed % 3 == 0 else self.worker
        self.executor = Either(worker, seed, self.depth) if self.depth > 1 else Inline(worker)
        self.engine = EngineCore(
            self.executor, info, self.schedule, TEXT, share=share, seed=seed,
            grammars=self.grammars, jumps=jumps, drafts=drafts, clock=self.clock,
        )  # fmt: skip
        if kind.tight and r.random() < 0.7:  # an optimist, which must retract
            self.engine.planner.reserve = Reserve(share=0.0, low=0.0, step_up=0.0)
        self._bound_steps(seed)
        if seed >= NARROW and seed % 4 == 1:
            self._bound_grammars(seed)
        if r.random() < 0.5:
            self.engine.store.tree.heap_spare, self.engine.store.tree.heap_share = 0, 1
        self._count_what_is_inside()
        self.capacity = CheckedCapacity(
            self.engine.planner.budgets, self.schedule.latency_target_ms, self.seen
        )
        self.seen["histories"] += 1
        self.seen[f"histories of depth {self.depth}"] += 1
        self.seen[f"histories of budget {self.schedule.prefill_budget}"] += 1
        self.seen["histories of large pages"] += kind.page_size > 1
        self.seen["long histories"] += kind.long
        self.seen["narrow histories"] += kind.fills > 0
        self.wishes = Wishes(r, kind, bool(self.model))
        self.asked: dict[int, Asked] = {}
        self.contexts: dict[int, Known] = {}  # idle and busy ones, as the client believes
        self.generations: dict[
            int, tuple[int, Generate]
        ] = {}  # last one by context: where it began
        self.answered: list[tuple[Known, Generate, list[int]]] = []  # the last texts
        self.whole: dict[int, list[int]] = {}  # texts by the context that goes on with a part
        self.opened: list[tuple[Any, str, str]] = []  # prompts, adapters and salts
        self.ended: dict[int, str] = {}
        self.numbers = iter(range(1, 1 << 30))
        self.loaded: dict[str, int] = {}  # adapters by name
        self.adapters = 0  # loaded so far
        self.replies: dict[int, Reply | None] = {}  # by the number of the verb
        self.loading = 0  # the verb whose adapter waits at the worker's gate
        self.refused_parks = 0
        self.most_overtaken = 0
        self.bound = 0  # most passes, were nothing shared and nothing batched

    def _attach_disk(self, seed: int) -> None:
        """A disk below host memory, in most histories that have some; it may fail or be slow."""
        r = self.disk_random = random.Random(f"disk {seed}")
        size = self.kind.page_size
        if not self.kind.host or r.random() < 0.3:
            return
        size *= r.choice([1, 2, 4])
        slots = r.choice([2, self.kind.host, 10 * self.kind.host]) // size + 1
        looks = r.choice([0, 1, 4, 30])
        disk = FakeDisk(slots, size, self.worker.host, delay=lambda: r.randint(0, looks))
        if r.random() < 0.5:
            disk.fail_reads = {n for n in range(500) if r.random() < 0.1}
            disk.fail_writes = {n for n in range(500) if r.random() < 0.1}
        self.worker.disk = disk

    def _drafts(self, jumps: str, share: bool) -> Drafts:
        """Source of drafts: now and then a draft model, whose memory may be much too small."""
        r = self.random
        self.model: ModelDrafter | None = None
        self.guesser: Guesser | None = None
        if r.random() < 0.5:
            room = r.choice([20, 60, 2 * self.kind.capacity])
            self.guesser = Guesser(
                r.choice([2, 5, 1000]), {r.randint(5, 60)} if self.faulty else None
            )  # fmt: skip
            self.model = ModelDrafter(self.guesser, fake_info(room, 1), r.choice([-1, 3]), share)
        default = r.choice(["none", "ngram", *(["draft"] if self.model else [])])
        return Drafts(jumps, default, r.choice([1, 4, 16]), r.choice([3, 64]), self.model)

    def run(self) -> History:
        try:
            self._run()
            self._finish()
        finally:
            self.worker.gate.set()
            self.engine.close()
        return self

    def _run(self) -> None:
        r, shape = self.random, self.kind.shape
        begun, pace = 0, r.choice([0.5, 0.5, 0.5, 0.15])  # rate of arrivals
        while begun < shape.requests or self.asked:
            self.grammars.pass_time()
            self._handle()
            if begun < shape.requests and r.random() < pace:
                for _ in range(min(r.randint(1, shape.burst), shape.requests - begun)):
                    self._act()
                    begun += 1
            if self.asked and r.random() < (0.002 if self.kind.long else 0.06):
                self._abort()
            if self.contexts and r.random() < 0.3:
                self._park()
            if r.random() < 0.04:
                self._flush()
            self._forget_above_disk()
            if self.kind.adapters and r.random() < (0.15 if self.loaded else 0.9):
                self._change_adapters()
            if self.kind.blind and r.random() < 0.2:
                self.worker.blind = {bytes([r.randint(1, 4)]) * 16} if r.random() < 0.4 else set()
            self._step()

    def _step(self) -> None:
        self.clock.advance(1.0)
        engine = self.engine
        oldest = min(engine.running.values(), key=lambda q: q.scheduling.arrival, default=None)
        waiting = list(engine.waiting.values())
        self._check_hints()
        self.capacity.held = []
        flying = {request.id for request in waiting if request.pending}
        assert engine.busy or engine.compiling or not self.asked, "a request is lost"
        busy, before, failed = engine.busy, self._progress(), engine.stats.failed_passes
        events = engine.step()
        self._take(events)
        failed = engine.stats.failed_passes - failed
        moved = self._progress() != before or events
        assert moved or not busy, "the engine is busy and does nothing"
        # A retracted request may compute once more all that it had computed.
        most = self.bound * (2 if engine.stats.retractions else 1) + engine.stats.postponed_rows
        assert engine.stats.passes <= most, "requests undo each other's work"
        if not failed:
            assert oldest is None or oldest.id not in engine.waiting, "the oldest gave way"
            self._check_order([q for q in waiting if not (q.id in flying and q.id in self.ended)])
        engine.store.check()
        engine.planner.parked.check()
        if self.model is not None:
            self.model.store.check()
        self._check_matches()

    def _check_hints(self) -> None:
        """Requests keep their hints, also where they wait again."""
        for request in self.engine.requests.values():
            asked = self.asked.get(request.id)
            if asked is not None:
                assert request.scheduling.hint == asked.hint, "a hint is lost"
                again = asked.hint is not None and request.stats.retractions > 0
                self.seen["retracted with a hint"] += again

    def _progress(self) -> tuple[int, ...]:
        """State that a step changes: passes planned, passes in flight, idle copies owed, requests
        that wait, of which the disk may let go some at the end of a step."""
        engine = self.engine
        copies = engine.disk.work
        return engine.planner.step_number, len(engine._in_flight), copies, len(engine.waiting)

    # -- the client ------------------------------------------------------------------------------

    def _act(self) -> None:
        """Another request: on a new context, a fork, or an idle context made longer or shorter."""
        r = self.random
        busy = {asked.context for asked in self.asked.values()}
        idle = [number for number in self.contexts if number not in busy]
        kind = r.random()
        if self.contexts and kind < 0.25:  # a parent may be busy: its KV so far is shared
            running = [a.context for a in self.asked.values() if a.id in self.engine.running]
            parent = r.choice(r.choice([idle, running, running]) or list(self.contexts))
            length = r.choice([-1, -1, r.randint(1, len(self.contexts[parent].tokens))])
            if any(a.context == parent and a.seldom for a in self.asked.values()):
                length = abs(length)  # the context may have tokens that were not emitted
            self.seen["forks of busy contexts" if parent in busy else "forks of idle contexts"] += 1
            self._advance(*self._fork(parent, length))
        elif idle and kind < 0.35:
            context = r.choice(idle)
            length = r.randint(1, len(self.contexts[context].tokens))
            self.contexts[context].cut(length)
            self._advance(context, [Truncate(context, length)])
        elif idle and kind < 0.45:
            context = r.choice(idle)
            more = [r.randrange(96) for _ in range(r.randint(1, 4))]
            self.contexts[context].append(more)
            self._advance(context, [Append(context, ints(more).tobytes())])
        elif self._begun(idle) and kind < 0.58:
            self._resume(r.choice(self._begun(idle)))
        elif self.answered and kind < 0.59:
            self._continue(*r.choice(self.answered))
        elif idle and kind < 0.6:  # n answers to one prompt
            parent, goal = r.choice(idle), Generate(self.wishes.sampling())
            for _ in range(r.randint(2, 4)):
                self._advance(*self._fork(parent, -1), goal)
            self.seen["families of forks"] += 1
        else:
            self._advance(*self._open())

    def _begun(self, idle: list[int]) -> list[int]:
        """Idle contexts that end with a generated text, or did."""
        return [number for number in idle if number in self.generations]

    def _resume(self, context: int) -> None:
        """Go on with a generation behind a tool's result, which may be empty."""
        r = self.random
        since, goal = self.generations[context]
        more = [r.randrange(96) for _ in range(r.choice([0, 0, 1, 4]))]
        self.contexts[context].append(more)
        growth = r.randint(1, self.kind.shape.growth)
        sampling = replace(
            goal.sampling, max_new_tokens=growth, min_new_tokens=r.choice([0, growth])
        )
        verbs: list[Verb] = [Append(context, ints(more).tobytes())] if more else []
        again = msgspec.structs.replace(goal, sampling=sampling, since=since, generated=0)
        self._advance(context, verbs, again)

    def _continue(self, prompt: Known, goal: Generate, text: list[int]) -> None:
        """Request the rest of a text, as where another engine was lost in the midst of it."""
        count, context = self.random.randrange(1, len(text)), next(self.numbers)
        since = len(prompt.tokens) if goal.since < 0 else goal.since
        self.contexts[context] = known = prompt.copy()
        known.append(text[:count])
        opening = Open(context, ints(known.tokens).tobytes(), known.salt, known.segments)
        self._salt(context)
        self.whole[context] = text
        more = {"since": since, "generated": count, "score_from": -1}
        self._advance(context, [opening], msgspec.structs.replace(goal, **more))

    def _park(self) -> None:
        """Say that a context waits for a tool, rightly or, where it is busy, wrongly."""
        r, parked = self.random, self.engine.planner.parked
        context, bad = r.choice(list(self.contexts)), self.engine.stats.bad_verbs
        expected = r.choice([0.0, 1.0, 5.0, 30.0, -1.0])
        deadline = r.choice([600.0, 600.0, 20.0, 3.0])
        self._handle(Park(context, r.choice("tu"), r.choice("ab"), expected, deadline))
        busy = any(asked.context == context for asked in self.asked.values())
        refused = self.engine.stats.bad_verbs > bad
        self.refused_parks += refused
        assert refused is (busy or expected < 0), "only an idle context can be parked"
        self.seen["contexts parked"] += context in parked._claims
        self.seen["claims that expired"] = parked.expired

    def _fork(self, parent: int, length: int) -> tuple[int, list[Verb]]:
        child = next(self.numbers)
        known = self.contexts[child] = self.contexts[parent].copy()
        if length > 0:
            known.cut(length)
        self._salt(child)
        return child, [ForkContext(parent, child, length)]

    def _open(self) -> tuple[int, list[Verb]]:
        r, context = self.random, next(self.numbers)
        if not self.opened or r.random() < 0.4:
            names = [*self.loaded] * 4 + ["", "", r.choice(NAMES)] if self.kind.adapters else [""]
            self.opened.append(
                (self.wishes.prompt(), r.choice(names), r.choice(["", "", "", "salt"]))
            )
        again = self.opened[-1:] if r.random() < 0.6 else self.opened  # an older one may be evicted
        (tokens, segments, media), name, salt = r.choice(again)
        adapter = self.loaded.get(name, -1) if name else 0
        self.contexts[context] = Known.opened(tokens, segments, media, salt, adapter)
        self._salt(context)
        return context, [Open(context, ints(tokens).tobytes(), salt, segments, media, name)]

    def _salt(self, context: int) -> None:
        if self.contexts[context].salt:
            self.worker.salted.add(context)

    def _advance(self, context: int, verbs: list[Verb], goal: Goal | None = None) -> None:
        r, known, request = self.random, self.contexts[context], next(self.numbers)
        goal = goal or self.wishes.goal(len(known.tokens), known.tail)
        close = r.random() < (0.3 if known.adapter >= 0 else 0.9)
        now, arrived = self.clock.now(), r.choice([0.0, 0.0, 0.0, r.uniform(0.0, 2.0)])
        arrived *= now
        hint, begun = self.hints.choose(now)
        arrived = begun or arrived
        asked = self.asked[request] = Asked(
            request, context, goal, known.copy(), close, now, min(arrived, now) or now, hint
        )
        engine = self.engine
        queued = len(engine.waiting) + len(engine._compiling) + len(engine.disk)
        if queued >= self.kind.queue:
            asked.refusal = "busy"
        elif reference.refused(known, goal, self.kind.limit):
            asked.refusal = "invalid"
        if known.salt and self.guesser is not None:
            self.guesser.salted.add(request)
        self.bound += len(known.tokens) + _growth(goal) + 1
        self.seen["requests"] += 1
        self.seen.update(f"requests with {feature}" for feature in asked.features)
        priority = r.choice([0, 0, 1, 5, -2])
        self.seen["requests with a priority"] += priority != 0
        self.seen["requests that arrived before"] += asked.arrived < now
        self.seen["requests with a hint"] += hint is not None
        facts = priority, close, arrived, hint, asked.reports_prompt
        self._handle(*verbs, Advance(context, request, goal, *facts))

    def _abort(self) -> None:
        waiting = self.engine.waiting
        retracted = [n for n in self.asked if n in waiting and waiting[n].stats.forward_passes]
        number = self.random.choice(retracted or list(self.asked))
        context = self.asked[number].context
        state = "running"
        if number in waiting:
            state = "retracted" if waiting[number].stats.forward_passes else "waiting"
        self.seen[f"aborts of {state} requests"] += 1
        self.asked[number].close = True
        events = self._handle(Close(context))
        own = [e for e in events if not isinstance(e, (Reply, SpaceEnded)) and e.request == number]
        assert isinstance(own[-1], Done), "an abort ends its request"
        assert own[-1].reason == "abort"
        self.seen["aborts that tell what was drawn"] += len(own) > 1

    def _flush(self) -> None:
        busy, number = bool(self.asked), next(self.numbers)
        self.replies[number] = None
        self._handle(Control(number, "flush"))
        reply = self.replies[number]
        assert reply is not None
        assert reply.ok is not busy, "only an idle engine can be flushed"
        self.seen["flushes"] += reply.ok

    def _forget_above_disk(self) -> None:
        """Now and then let all requests end and all be written; then empty the device and host
        memory, as a restart does."""
        engine, host = self.engine, self.engine.store.host
        if engine.disk.tier is None or self.disk_random.random() > 0.1:
            return
        while self.asked or engine.busy or engine.disk.pending:
            self.grammars.pass_time()
            self._handle()
            self._step()
        assert host is not None
        engine.store.tree.clear("evicted")
        host.tree.clear()
        self.seen["restarts with a warm disk"] += engine.disk.counts.get("disk_tokens", 0) > 0

    # -- adapters --------------------------------------------------------------------------------

    def _change_adapters(self) -> None:
        """Load one, whose file may be read for some steps; or unload one that may be in use."""
        r, number = self.random, next(self.numbers)
        if self.loading:
            self._loaded()
            return
        name = r.choice(NAMES)
        if name in self.loaded and r.random() < 0.6:
            used = any(a.prompt.adapter == self.loaded[name] for a in self.asked.values())
            self.seen["adapters unloaded in use"] += used
            del self.loaded[name]
            self.replies[number] = None
            self._handle(UnloadAdapter(number, name))
            return
        leaving = len(self.worker.loaded) - len(self.loaded)
        self.replies[number] = None
        path = "bad" if r.random() < 0.1 else name
        self.worker.gate.clear()
        self._handle(LoadAdapter(number, name, path))
        if name in self.loaded or len(self.loaded) + leaving >= MOST_LOADED:
            assert self.replies[number] is not None, "a load that cannot be is refused at once"
            assert not self.replies[number].ok  # type: ignore[union-attr]
            self.worker.gate.set()
            return
        self.adapters += 1  # an adapter's number, whether or not its files are good
        self.loading, self.name, self.path = number, name, path
        if r.random() < 0.5:
            self._loaded()

    def _loaded(self) -> None:
        """Let the adapter in, wait for the thread that reads it, and have the engine say so."""
        number, self.loading = self.loading, 0
        self.worker.gate.set()
        wait([loading.facts for loading in self.engine.adapters._loading], timeout=60)
        self._handle()
        assert self.replies[number] is not None, "an adapter is never loaded"
        assert self.replies[number].ok is (self.path != "bad")  # type: ignore[union-attr]
        if self.path != "bad":
            self.loaded[self.name] = self.adapters
            self.seen["adapters loaded"] += 1
            self.seen["adapters loaded while others compute"] += bool(self.asked)

    # -- events ----------------------------------------------------------------------------------

    def _handle(self, *verbs: Verb) -> list[Event]:
        events = self.engine.handle(verbs)
        self._take(events)
        return events

    def _take(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Reply):
                assert self.replies[event.id] is None, "a verb is answered twice"
                self.replies[event.id] = event
                continue
            assert not isinstance(event, SpaceEnded), "a history has no spaces"
            assert event.request in self.asked, "an event of a request that has ended"
            asked = self.asked[event.request]
            if isinstance(event, Tokens):
                self._told(asked, event)
            elif isinstance(event, PromptChunk):
                assert not asked.drawn, "the prompt is reported behind its first token"
                asked.report.append(event)
            elif isinstance(event, PromptProgress):
                assert asked.reports_prompt, "progress that nobody wants"
                assert not asked.sampled, "progress behind the first sampled token"
                assert 0 < event.ready <= len(asked.prompt.tokens)
                asked.prompt_ready = event.ready
                self.seen["reports of a prompt's progress"] += 1
            else:
                assert isinstance(event, (Done, Failed)), event
                del self.asked[event.request]
                assert event.request not in self.ended
                self._ended(asked, event)
                self._check_context(asked)

    def _told(self, asked: Asked, event: Tokens) -> None:
        assert event.tokens, "an event of nothing"
        if event.stats is not None:
            asked.sampled = True
            if asked.reports_prompt:
                assert asked.prompt_ready == len(asked.prompt.tokens), "a prompt that is half ready"
        asked.drawn += event.tokens
        asked.told += 1
        asked.logprobs += event.logprobs
        asked.tops += event.tops
        asked.probes += event.probes
        asked.length += sum(len(TEXT[token]) for token in event.tokens)
        asked.shown = max(asked.shown, asked.length - event.held)
        self.contexts[asked.context].append(event.tokens)

    def _check_context(self, asked: Asked) -> None:
        context = self.engine.store.contexts.get(asked.context)
        assert (context is None) is asked.close, "a context is closed with its request, or kept"
        if context is None:
            del self.contexts[asked.context]
            return
        known = self.contexts[asked.context]
        assert list(context.tokens) == known.tokens, "its tokens are not those told of"

    def _ended(self, asked: Asked, event: Done | Failed) -> None:
        goal = asked.goal
        if isinstance(event, Failed):
            self.ended[event.request] = event.code
            unseen = "could not be encoded" in event.message and self.kind.blind
            broken = event.code == "internal" and (self.faulty or unseen)
            if asked.refusal and not broken:
                assert event.code == asked.refusal, event.message
                self.seen[f"requests refused as {event.code}"] += 1
                self.seen["requests beyond the context"] += "exceed the limit" in event.message
                self.seen["requests on unknown adapters"] += "not loaded" in event.message
            else:
                assert broken, event.message
                self.seen["images that cannot be encoded"] += unseen
            return
        self.ended[event.request] = event.reason
        age = self.clock.now() - asked.received
        assert 0 <= event.stats.queue_seconds <= (event.stats.first_token_seconds or age) <= age, (
            "seconds are miscounted"
        )
        if event.reason == "abort":
            assert event.stats.completion_tokens == len(asked.drawn), (
                "tokens that nobody was told of"
            )
            return
        assert not asked.refusal, f"a request that is {asked.refusal} was answered"
        assert event.stats.prompt_tokens == len(asked.prompt.tokens)
        if event.stats.forward_passes and not event.stats.retractions:
            assert event.stats.cached_tokens == event.stats.prompt_tokens - asked.computed, (
                "cached tokens are miscounted"
            )
        self.seen.update(f"answers with {feature}" for feature in asked.features)
        if event.stats.retractions:
            self.seen.update(f"retracted with {feature}" for feature in asked.features)
        if event.stats.loaded_tokens:
            self.seen.update(f"loaded with {feature}" for feature in asked.features)
        self.seen["tokens read from disk"] += event.stats.disk_tokens
        if event.stats.disk_tokens:
            self.seen.update(f"read from disk with {feature}" for feature in asked.features)
        if event.stats.cached_tokens:
            self.seen.update(f"cached with {feature}" for feature in asked.features)
        if event.stats.accepted_tokens:
            self.seen.update(f"drafted with {feature}" for feature in asked.features)
        if isinstance(goal, Generate):
            self._check_text(asked, goal, event)
            if not asked.close and goal.score_from < 0:
                since = len(asked.prompt.tokens) if goal.since < 0 else goal.since
                self.generations[asked.context] = since, goal
        self._check_report(asked)
        if isinstance(goal, Distribution):
            found = event.top, event.probe
            assert found == reference.tip(asked.prompt, goal), "a distribution has changed"
        if isinstance(goal, Embed):
            want = reference.embedding(asked.prompt, goal.pooling)
            assert event.embedding == want, "an embedding has changed"
            self.seen[f"embeddings by {goal.pooling}"] += 1

    def _check_text(self, asked: Asked, goal: Generate, event: Done) -> None:
        sampling = goal.sampling
        want = expected(asked.prompt, sampling, TEXT, goal.since, goal.generated)
        if goal.generated:
            begun, whole = asked.prompt.tokens[-goal.generated :], self.whole[asked.context]
            assert begun + want.tokens == whole, "a cut text goes on otherwise"
            self.seen["texts cut between engines"] += 1
        elif len(want.tokens) > 1 and not (asked.prompt.keys or asked.prompt.adapter):
            self.answered = [*self.answered[-9:], (asked.prompt, goal, want.tokens)]
        self.seen["texts that went on"] += goal.since >= 0
        assert asked.drawn == want.tokens, "the text has changed"
        assert event.stats.completion_tokens == len(asked.drawn), "tokens that nobody was told of"
        assert event.reason == want.reason, f"{event.reason}, not {want.reason}"
        assert (event.matched, event.cut) in want.ends, f"{event.matched!r} at {event.cut}"
        if asked.seldom and sampling.constraint is None:
            assert asked.told <= 2 + event.stats.completion_tokens // goal.interval, (
                "told too often"
            )
        assert event.stats.accepted_tokens <= min(
            event.stats.drafted_tokens, event.stats.completion_tokens
        )
        if isinstance(event.matched, str):
            assert asked.shown <= event.cut, "a stream has shown a part of the stop"
            pattern = event.matched not in sampling.stop
            self.seen["ends by a pattern" if pattern else "ends by a string"] += 1
        self.seen["forced tokens"] += event.stats.forced_tokens
        self.seen["accepted drafts"] += event.stats.accepted_tokens
        self.seen["rejected drafts"] += event.stats.drafted_tokens - event.stats.accepted_tokens
        if event.stats.accepted_tokens and not sampling.constraint:
            self.seen[f"texts drafted by {sampling.speculation}"] += 1
        self.seen["dead ends"] += event.reason == "error"
        self.seen["answers of a hundred tokens"] += event.stats.completion_tokens >= 100
        self._check_logprobs(asked, goal, want)

    def _check_logprobs(self, asked: Asked, goal: Generate, want: Text) -> None:
        """One for every token of the answer."""
        readings = want.readings
        if goal.top < 0:
            assert not asked.logprobs
        else:
            found = reference.logprobs(readings, want.tokens)
            assert asked.logprobs == found, "log-probabilities have changed"
        assert asked.tops == reference.tops(readings, goal.top), "the likeliest have changed"
        assert asked.probes == reference.probes(readings, goal.probe), "the probes have changed"

    def _check_report(self, asked: Asked) -> None:
        """Log-probabilities of the prompt."""
        start = reference.score_start(asked.goal)
        assert bool(asked.report) is (start >= 0)
        if not asked.report:
            return
        report = joined(asked.report)
        self.seen["prompts reported in several runs"] += len(asked.report) > 1
        readings = reference.scores(asked.prompt, start)
        want = reference.logprobs(readings, asked.prompt.tokens[start:])
        assert (report.start, report.logprobs) == (start, want), "a prompt's scores have changed"
        assert report.tops == reference.tops(readings, asked.goal.top)  # type: ignore[union-attr]
        assert report.probes == reference.probes(readings, asked.probe)
        self.seen["scored prompts"] += 1

    # -- the end ---------------------------------------------------------------------------------

    def _finish(self) -> None:
        engine, store, s = self.engine, self.engine.store, self.engine.stats
        if self.loading:
            self._loaded()
        if self.model is not None:
            self.seen["passes of draft models"] += self.model.passes
            assert not self.model.store.contexts, "a draft model's context is left"
            self.model.store.flush()
            assert self.model.store.pool.free == self.model.store.pool.size, "its pages are lost"
        while engine.busy:  # a pass whose requests were all aborted
            self._step()
        assert store.protected == 0, "memory is held though nothing runs"
        assert set(store.contexts) == set(self.contexts), "a context is left, or closed too early"
        self._handle(*[Close(c) for c in list(store.contexts)])
        assert not store.contexts
        self.seen["claims that gave way"] += self.engine.planner.parked.yielded
        self._finish_adapters()
        self._check_tables()
        store.check()
        while engine.disk.pending:
            self._handle()
        store.check()
        store.flush()
        assert store.pool.free == store.pool.size, "pages lost"
        host = store.host
        assert host is None or host.tree.pool.free == host.tree.pool.size, "host pages lost"
        tier = engine.disk.tier
        assert tier is None or tier.tree.pool.free == tier.tree.pool.size, "slots lost"
        assert s.received == s.finished + s.aborted + s.failed
        assert s.plan_misses == 0, "the plan counted on memory that was not there"
        assert s.bad_verbs == self.refused_parks
        assert not self.engine.planner.parked, "a claim outlives its context"
        self.engine.planner.parked.check()
        self.seen.update(
            retractions=s.retractions,
            evictions=store.tree.evicted,
            passes=s.passes,
            overtakes=self.most_overtaken,
        )
        self.seen["tokens stored in host memory"] += store.counts.get("stored_tokens", 0)
        self.seen["tokens loaded from host memory"] += s.loaded_tokens
        self.seen["faults of disks"] += int(engine.disk.counts.get("disk_faults", 0))
        self.seen["requests that waited for a disk"] += int(engine.disk.counts.get("disk_waits", 0))
        self.seen["failed passes"] += s.failed_passes
        self.seen["postponed rows"] += s.postponed_rows
        self.seen["failed requests"] += s.failed
        self.seen["cached tokens"] += s.cached_tokens
        self.seen["rows sharing within a pass"] += self.worker.shared_in_pass
        self.seen["rows that follow"] += self.worker.followed
        self.seen["rows of adapters that are gone"] += self.worker.gone
        self.seen["rows that follow with penalties"] += self.worker.penalised
        self.seen["histories that retract"] += s.retractions > 0
        self.seen["refused requests"] += s.rejected

    def _check_tables(self) -> None:
        """Workers keep no page table but those that the next pass would drop."""
        left = set(self.worker.tables.known) - set(self.engine.store.dropped())
        assert not left, f"page tables of contexts {left} are left at the worker"
        if self.model is not None and self.guesser is not None and not self.model._failed:
            left = set(self.guesser.tables.known) - set(self.model.store.dropped())
            assert not left, f"page tables of contexts {left} are left at the draft model's worker"

    def _finish_adapters(self) -> None:
        for name in list(self.loaded):
            number = next(self.numbers)
            self.replies[number] = None
            self._handle(UnloadAdapter(number, name))
        self._handle()
        assert None not in self.replies.values(), "a verb without an answer"
        assert not self.worker.loaded, "an adapter is left"
        assert self.worker.adapters <= MOST_IN_PASS, "too many adapters in a pass"
        spaces = {space.adapter for space in self.engine.store.tree.namespaces}
        host = self.engine.store.host
        spaces |= {space.adapter for space in host.tree.namespaces} if host is not None else set()
        assert spaces <= {0, -1}, "KV of an adapter that is gone"

    # -- inside the engine -----------------------------------------------------------------------

    def _check_order(self, before: list[Request]) -> None:
        """Check the order of admission. The admitted requests come first in the policy's order,
        where that is fixed, and no request is overtaken beyond the bound."""
        waiting, policy = self.engine.waiting, self.schedule.schedule_policy
        before = [
            q for q in before if self.ended.get(q.id) != "internal"
        ]  # requests with a bad image
        admitted = [request for request in before if request.id not in waiting]
        held = self.capacity.held
        if not admitted:
            return
        for request in admitted:
            asked = self.asked.get(request.id)
            age = request.scheduling.arrival >> 40
            assert asked is None or age == int(asked.arrived * 1e9), "a wrong age"
        late = any(q.scheduling.overtaken >= self.schedule.max_overtakes for q in before)
        if policy in ("fcfs", "priority") or (policy == "app" and not late):
            rank = partial(_rank, policy)
            free = [q for q in before if q.id not in waiting or q.scheduling.hint not in held]
            want = sorted(map(rank, free))[: len(admitted)]
            assert sorted(map(rank, admitted)) == want, f"admitted against {policy}"
        last = max(request.scheduling.arrival for request in admitted)
        for request in before:
            if (
                request.id in self.asked
                and request.id in waiting
                and request.scheduling.arrival < last
            ):
                asked = self.asked[request.id]
                overdue = asked.overtaken >= self.schedule.max_overtakes
                assert policy == "priority" or not overdue, "an overdue request is overtaken"
                asked.overtaken += sum(
                    q.scheduling.arrival > request.scheduling.arrival for q in admitted
                )
                self.most_overtaken = max(self.most_overtaken, asked.overtaken)
        bound = self.schedule.max_overtakes + self.schedule.max_running_requests
        assert policy == "priority" or self.most_overtaken <= bound, "starvation"

    def _check_matches(self) -> None:
        """Matches that the engine remembers and would use are those it would find."""
        engine = self.engine
        if engine.planner._matched_at == engine.store.version:
            for number, found in engine.planner._matches.items():
                request = engine.waiting.get(number)
                if request is not None:
                    now = engine.store.match(request.context, request.match_limit)
                    assert found == now, "a remembered match is stale"

    def _bound_steps(self, seed: int) -> None:
        """Hold what a step costs, in counted work, under its bound, which is small here."""
        engine, step = self.engine, self.engine.step
        engine.planner.movable = self.kind.movable
        engine.planner.lookup = random.Random(seed).choice([8, 30, 1 << 21])

        def counted() -> list[Event]:
            waiting = {i: len(q.context.tokens) for i, q in engine.waiting.items()}
            events = step()
            sizes = [size for i, size in waiting.items() if i in engine.running]
            if self.schedule.schedule_policy != "priority" and len(sizes) > 1:
                assert sum(sizes) <= engine.planner.lookup, "a step looks up too much"
            self.seen["steps that admit more than one"] += len(sizes) > 1
            assert engine._collector.searched <= STEP_SEARCH, "a step searches too much"
            return events

        engine.step = counted  # type: ignore[method-assign]

    def _bound_grammars(self, seed: int) -> None:
        """Let the grammars of a pass do little work: rows wait for the budget of a later pass."""
        limit = random.Random(f"grammars {seed}").choice([1, 2, 3, 8])
        self.engine.planner.new_budget = lambda: GrammarBudget(limit, self.grammars.work)

    def _count_what_is_inside(self) -> None:
        """Splits and compactions of the tree; what each request computes of its prompt."""
        tree, executor = self.engine.store.tree, self.executor
        split, offer, submit = tree._split, tree._offer, executor.submit

        def split_(node: Any, length: int) -> Any:
            self.seen["splits"] += 1
            return split(node, length)

        def offer_(node: Any) -> None:
            heap = tree._heap
            offer(node)
            self.seen["compactions of the heap"] += tree._heap is not heap

        def submit_(batch: Batch, masks: Masks = NO_MASKS) -> None:
            self._count_computed(batch)
            submit(batch, masks)

        tree._split, tree._offer = split_, offer_  # type: ignore[method-assign]
        executor.submit = submit_  # type: ignore[method-assign]

    def _count_computed(self, batch: Batch) -> None:
        """Prompt tokens by request: those that its rows compute up to the first that samples."""
        self.seen["passes that only copy"] += not batch.rows
        self.bound += not batch.rows
        computed = Counter[int]()
        for row in batch.rows:
            computed[row.context] += len(row.tokens)
        sampled = {row.context for row in batch.rows if row.sample is not None}
        for asked in self.asked.values():
            if asked.context in computed and not asked.at_tip:
                end = self.engine.store.contexts[asked.context].saved
                start, most = end - computed[asked.context], len(asked.prompt.tokens)
                asked.computed += max(min(end, most) - start, 0)
                asked.at_tip = asked.context in sampled


def _rank(policy: str, request: Request) -> tuple[int, int]:
    """Sort key of a waiting request under an order that is a function of the requests."""
    if policy == "priority":
        return -request.spec.priority, request.scheduling.arrival
    # Under ``app`` a step may see some of an application's calls alone.
    return int(request.spec.arrived * 1e9), request.scheduling.arrival * (policy != "app")


def _growth(goal: Goal) -> int:
    return goal.sampling.max_new_tokens - goal.generated if isinstance(goal, Generate) else 0
