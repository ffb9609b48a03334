"""Cost of one request in one step of the engine's loop, in counted work."""

from __future__ import annotations

import random
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import zmq
from helpers.desk import Desk, generate
from helpers.fake_worker import TOKEN_BYTES
from helpers.toy_grammar import bits
from sglang.ir.constraint import Constraint
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import (
    Advance,
    Append,
    Close,
    Done,
    Event,
    ForkContext,
    Open,
    PromptChunk,
    PromptProgress,
    Score,
    Tokens,
    Verb,
    encode,
)
from sglang.srt.core.work import STEP_BYTES, STEP_NUMBERS, STEP_SEARCH, STEP_VERBS
from sglang.srt.engine import admission
from sglang.srt.engine.collect import MAX_FORCED
from sglang.srt.engine.loop import VerbCosts, affordable, serve
from sglang.srt.engine.socket import EXIT, SocketChannel, configure
from sglang.srt.engine.waiting_queue import WINDOW
from sglang.srt.grammar.grammar_protocol import CompiledGrammar, Matcher
from sglang.srt.grammar.stop_watch import Patterns, StopWatch
from sglang.srt.schedule.scheduler import plan
from sglang.srt.schedule.scheduler_view import PassDecision, View

LETTERS = "abcdefghijklmnopqrstuvwxyz"
HOSTILE = (r"[a-m][^Z]{900}Z1", r"[a-m][^Z]{800}Z2")


class Forced:
    """A grammar of one text, that of the constraint."""

    path = "forced"

    def __init__(self, text: str = "") -> None:
        self.counts: dict[str, int] = {}
        self._tokens = [TOKEN_BYTES.index(char.encode()) for char in text]
        self._at = 0

    def submit(self, constraint: Constraint) -> Future[CompiledGrammar]:
        future: Future[CompiledGrammar] = Future()
        future.set_result(Forced(constraint.text))
        return future

    def matcher(self) -> Matcher:
        return self

    def fork(self) -> Matcher:
        raise AssertionError("not needed")

    @property
    def accepting(self) -> bool:
        return self._at == len(self._tokens)

    @property
    def finished(self) -> bool:
        return self.accepting

    def mask(self) -> bytes:
        return bits(frozenset(self._tokens[self._at : self._at + 1]))

    def advance(self, token: int) -> bool:
        self._at += 1
        return token == self._tokens[self._at - 1]

    def forced(self, limit: int) -> list[int]:
        return self._tokens[self._at : self._at + limit]

    def draft(self, limit: int) -> list[int]:
        return self.forced(limit)

    def rewrite(self) -> tuple[int, list[int]]:
        raise AssertionError("not needed")

    def rollback(self, count: int) -> None:
        self._at -= count


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count of the bytes that are searched for patterns, by the automata or by RE2: one item."""
    count, scan, search = [0], Patterns._scan, Patterns._search

    def scanned(self: Patterns, data: bytes) -> bool:
        count[0] += len(data)
        return scan(self, data)

    def searched(self: Patterns) -> object:
        count[0] += len(self._text)
        return search(self)

    monkeypatch.setattr(Patterns, "_scan", scanned)
    monkeypatch.setattr(Patterns, "_search", searched)
    return count


def attack(desk: Desk, patterns: tuple[str, ...], text: str, count: int) -> list[int]:
    """Requests whose whole text is forced."""
    goal = generate(len(text), stop_regex=patterns, constraint=Constraint("regex", text))
    return [desk.ask([7, 8, number], goal) for number in range(count)]


def text_of(desk: Desk, request: int) -> str:
    return b"".join(TOKEN_BYTES[token] for token in desk.tokens(request)).decode()


@pytest.mark.slow
def test_stop_patterns_let_others_go_on(read: list[int]) -> None:
    """Sixteen texts of 3,900 forced tokens, beside a victim that gets a token a step. A step reads
    a bounded number of bytes, and each byte is read once."""
    desk = Desk(capacity=1 << 17, grammars=Forced())
    victim = desk.ask([1, 2, 3], generate(64))
    text = (LETTERS * 150)[:3900]
    hostile = attack(desk, HOSTILE, text, 16)
    steps = 0
    while not any(isinstance(event, Done) for event in desk.events.get(victim, [])):
        before = read[0]
        desk.step()
        steps += 1
        assert read[0] - before <= STEP_SEARCH // 3 + 16
    assert steps <= 64 + 1, "the victim waits for nobody"
    desk.run()
    assert {desk.done(request).reason for request in hostile} == {"stop"}
    assert {text_of(desk, request) for request in hostile} == {text}
    assert read[0] == 16 * len(text)


@pytest.mark.slow
def test_forced_text_is_the_same_over_more_steps() -> None:
    """Patterns that cost much take forced tokens in several steps, where others take MAX_FORCED at
    a time."""
    costly = ("(?:a?b?){12}Z", *(rf"{char}+Z+{char}*[0-9]" for char in LETTERS[:12]))
    texts = []
    for patterns in ((), costly):
        desk = Desk(capacity=1 << 16, grammars=Forced())
        requests = attack(desk, patterns, (LETTERS * 30)[: 3 * MAX_FORCED], 40)
        desk.run()
        texts.append([text_of(desk, request) for request in requests])
        assert {desk.done(request).reason for request in requests} == {"stop"}
        passes = max(desk.done(request).stats.forward_passes for request in requests)
        assert (passes > 4) == bool(patterns)
    assert texts[0] == texts[1]


def test_a_costly_search_ends_its_own_request() -> None:
    """Every letter begins a match of 900. The text so far stands, and other requests go on."""
    desk = Desk(capacity=1 << 16, grammars=Forced())
    text = LETTERS[:13] * 200 + "Z1"
    hostile, *_ = attack(desk, HOSTILE, text + "after", 1)
    found, *_ = attack(desk, (r"m[^Z]{3}Z1",), LETTERS[:13] + "abcZ1after", 1)
    free = desk.ask([1, 2, 3], generate(20))
    desk.run()
    done = desk.done(hostile)
    assert done.reason == "error"
    assert "stop_regex" in done.message
    assert text_of(desk, hostile) == text
    assert desk.done(found).matched == "mabcZ1"
    assert desk.done(found).cut == 12
    assert desk.done(free).reason == "length"
    desk.finish()


def test_a_broken_search_ends_its_own_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search raises at a token, forced or sampled, or at admission. Other requests go on."""
    feed = StopWatch.feed

    def broken(self: StopWatch, data: bytes) -> object:
        if self.length >= 3 and self.cost:
            raise RuntimeError("no match")
        return feed(self, data)

    monkeypatch.setattr(StopWatch, "feed", broken)
    desk = Desk(capacity=1 << 16, grammars=Forced())
    forced, *_ = attack(desk, ("Z1",), LETTERS, 1)
    sampled = desk.ask([1, 2, 3], generate(20, stop_regex=("Z1",)))
    free = desk.ask([1, 2, 3], generate(20, stop=("no such text",)))
    monkeypatch.setattr("sglang.srt.grammar.stop_automaton.tree.parse", lambda text: [][0])
    refused = desk.ask([1, 2, 3], generate(20, stop_regex=("another",)))
    desk.run()
    for request in (forced, sampled):
        assert desk.failed(request).code == "internal"
        assert "the search for stops failed: RuntimeError: no match" in desk.failed(request).message
        assert 3 <= len(desk.tokens(request)) < 20
    assert desk.failed(refused).code == "internal"
    assert "IndexError" in desk.failed(refused).message
    assert desk.done(free).reason == "length"
    desk.finish()


def forks(size: int, count: int) -> list[Verb]:
    """A context and ``count`` requests on forks of it, as ``n`` completions of one prompt come."""
    verbs: list[Verb] = [Open(1, ints([3] * size).tobytes())]
    verbs += [ForkContext(1, 1 + i) for i in range(1, count)]
    verbs += [Advance(1 + i, 1000 + i, generate(2), close=True) for i in range(count)]
    return verbs


def test_messages_are_obeyed_over_several_steps() -> None:
    """128 forks of 100,000 tokens: no step copies more than its share, and nothing changes."""
    verbs, steps = forks(100_000, 128), []
    desk = Desk(capacity=64)
    while verbs:
        contexts = desk.engine.store.contexts
        count = affordable(verbs, contexts)
        assert sum(map(VerbCosts(contexts).of, verbs[:count])) <= STEP_VERBS
        desk.send(*verbs[:count])
        del verbs[:count]
        steps.append(count)
    assert 3 < len(steps) < 10
    assert len(desk.events) == 128, "each of them is refused: they are longer than the memory"
    desk.finish()


def test_small_messages_are_obeyed_at_once() -> None:
    verbs: list[Verb] = []
    for number in range(900):
        verbs += [Open(number, ints([1] * 100).tobytes()), Advance(number, number, generate(2))]
    assert affordable(verbs, {}) == len(verbs)
    huge: list[Verb] = [Open(1, bytes(4 * STEP_VERBS)), Open(2, bytes(4))]
    assert affordable(huge, {}) == 1, "at least one"


def test_forks_cost_what_was_appended_too() -> None:
    """Tokens are appended to a context of the engine, or to one of the same step."""
    desk = Desk(capacity=1 << 16)
    old = desk.open([1] * 3000)
    costs = VerbCosts(desk.engine.store.contexts)
    piece = ints([2] * 500).tobytes()
    verbs: list[Verb] = [
        Append(old, piece),
        ForkContext(old, 90),
        Append(90, piece),
        Append(90, piece),
        ForkContext(90, 91),
    ]
    assert [costs.of(verb) - 64 for verb in verbs] == [8000, 3500, 8000, 8000, 4500]
    assert costs.of(ForkContext(77, 92)) == 64, "of none: it is refused"


DIFFERENT = [{"stop_regex": (rf"[a-m][^Z]{{900}}{number}Z1",)} for number in range(12)]
CLASSES = [{"stop_regex": (rf"[\pL{number}]" * 25,)} for number in range(12)]
LONG = [{"stop": tuple(f"{number:04}{i:04}" * 4 for i in range(128))} for number in range(12)]


@pytest.mark.parametrize("stops", [DIFFERENT, CLASSES, LONG])
def test_a_step_makes_few_large_automata(stops: list[dict[str, Any]]) -> None:
    """Equal automata of one step are made once, and small ones are made at once."""

    def fit(some: list[dict[str, Any]]) -> int:
        goals = [generate(2, **each) for each in some]
        return affordable([Advance(i, i, goal) for i, goal in enumerate(goals)], {})

    assert 1 <= fit(stops) <= 2
    assert fit(stops[:1] * 500) == 500, "equal ones"
    assert fit([{"stop": (f"{i}\n",), "stop_regex": (f"[0-9]+ {i}",)} for i in range(100)]) == 100


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of messages is received at the rate at which steps take them."""
    desk, kept, most = Desk(capacity=1 << 16), [0], [0]
    handle = desk.engine.handle
    monkeypatch.setattr("sglang.srt.engine.loop.STEP_VERBS", 20_000)

    def handled(verbs: list[Verb]) -> object:
        kept[0] -= len(verbs)
        return handle(verbs)

    monkeypatch.setattr(desk.engine, "handle", handled)
    numbers = iter(range(1, 2000))

    class Channel:
        def receive(self, seconds: float, limit: int) -> list[Verb] | None:
            if not limit:
                return []
            assert limit == STEP_BYTES
            some: list[Verb] = [
                Open(i, ints([3] * 100).tobytes()) for _, i in zip("x" * 50, numbers)
            ]
            kept[0] += len(some)
            most[0] = max(most[0], kept[0])
            return some or None

        def emit(self, events: list[object]) -> None: ...

    serve(desk.engine, Channel())  # type: ignore[arg-type]
    assert most == [50]
    assert len(desk.engine.store.contexts) == 1999


def test_the_loop_obeys_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that waits for its step is not overtaken by later ones."""
    desk, sent, handled = Desk(capacity=1 << 16), forks(2000, 64), []
    expected = list(sent)
    handle = desk.engine.handle
    monkeypatch.setattr("sglang.srt.engine.loop.STEP_VERBS", 50_000)
    monkeypatch.setattr(desk.engine, "handle", lambda verbs: handled.append(verbs) or handle(verbs))
    done: list[int] = []

    class Channel:
        def receive(self, seconds: float, limit: int) -> list[Verb] | None:
            if sent and limit:
                return [sent.pop(0)]
            return [] if len(done) < 64 else None

        def emit(self, events: list[object]) -> None:
            done.extend(event.request for event in events if isinstance(event, Done))

    serve(desk.engine, Channel())  # type: ignore[arg-type]
    assert [verb for verbs in handled for verb in verbs] == expected


def test_a_step_takes_so_many_bytes(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/wire"
    channel, client = SocketChannel(address), configure(zmq.Context.instance().socket(zmq.PAIR))
    client.connect(address)
    try:
        for number in range(3):
            client.send(encode([Open(number, bytes(STEP_BYTES - 100))]))
        taken: list[int] = []
        while sum(taken) < 3:
            taken.append(len(channel.receive(10.0, STEP_BYTES) or ()))
        assert max(taken) <= 2
    finally:
        client.close(linger=0)
        channel._socket.close(linger=0)


def test_an_exit_overtakes_what_waits(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/wire"
    channel, client = SocketChannel(address), configure(zmq.Context.instance().socket(zmq.PAIR))
    client.connect(address)
    try:
        for number in range(3):
            client.send(encode([Open(number, bytes(4))]))
        received: list[Verb] = []
        while not received:
            received += channel.receive(1.0, 1) or []
        assert len(received) == 1, "a message is taken whole"
        assert channel.receive(0.0, 0) == []
        client.send(EXIT)
        while (more := channel.receive(0.01, 0)) is not None:
            assert more == []
    finally:
        client.close(linger=0)
        channel._socket.close(linger=0)


def test_tokens_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only new tokens are checked, of forks and of a context that is used again."""
    seen: list[int] = []

    def lowest(*found: Any) -> int:
        if len(found) == 1:  # tokens
            seen.append(len(found[0]))
        return min(*found)

    monkeypatch.setattr(admission, "min", lowest, raising=False)
    desk = Desk(capacity=1 << 16)
    desk.send(*forks(1000, 16))
    desk.run()
    assert seen == [1000]
    context = desk.open([5] * 30)
    desk.advance(context, generate(4))
    desk.run()
    desk.advance(context, generate(4))
    desk.run()
    assert seen == [1000, 30, 4]


def test_long_waiting_prompts_are_admitted_over_several_steps() -> None:
    """The tokens looked up in a step are bounded, cached or not; a longer prompt is still taken."""
    desk = Desk(capacity=1 << 16)
    desk.engine.planner.lookup = 3500
    first = desk.ask([7] * 1500, generate(2))
    desk.run()
    many = [desk.ask([7] * 1500, generate(2)) for _ in range(9)]
    long = desk.ask([9] * 4000, generate(2))
    admitted = []
    while desk.engine.busy:
        before = len(desk.engine.waiting)
        desk.step()
        admitted.append(before - len(desk.engine.waiting))
    assert max(admitted) == 2
    for request in (first, *many, long):
        assert desk.done(request).reason == "length"
    desk.finish()


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["priority", "lpm"])
def test_a_step_looks_at_so_many_waiting_requests(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound holds in any order. Requests of highest priority are still admitted first."""
    looked: list[int] = []

    def counted(view: View, policy: str, max_overtakes: int) -> PassDecision:
        looked.append(len(view.waiting))
        return plan(view, policy, max_overtakes)

    monkeypatch.setattr("sglang.srt.engine.planner.plan", counted)
    desk = Desk(capacity=1 << 12, schedule_policy=policy, max_running_requests=64,
                max_queued_requests=4000)  # fmt: skip
    dice = random.Random(1)
    priorities = {desk.ask([dice.randrange(9)], generate(1), priority=rank): rank
                  for rank in dice.choices(range(-50, 50), k=3000)}  # fmt: skip
    gone = dice.sample(sorted(priorities), 500)
    contexts = {request.id: number for number, request in desk.engine.requests.items()}
    desk.send(*(Close(contexts[request]) for request in gone))
    admitted = []
    while desk.engine.busy:
        before = set(desk.engine.waiting)
        desk.step()
        admitted += sorted((-priorities[r], r) for r in before - set(desk.engine.waiting))
    assert max(looked) <= WINDOW
    assert len(admitted) == 2500
    assert (admitted == sorted(admitted)) is (policy == "priority")
    desk.finish()


def test_retracted_requests_keep_their_priority() -> None:
    """Retracted requests are admitted again before those of lower priority."""
    desk = Desk(capacity=60, schedule_policy="priority", max_running_requests=8)
    ranks = {desk.ask([n] * 8, generate(30), priority=n % 3): n % 3 for n in range(9)}
    order: list[int] = []
    while desk.engine.busy:
        before = set(desk.engine.waiting)
        desk.step()
        after = set(desk.engine.waiting)
        admitted = [ranks[r] for r in before - after]
        order += admitted
        assert not admitted or min(admitted) >= max((ranks[r] for r in before & after), default=0)
    assert desk.engine.stats.retractions > 0
    assert len(order) == 9 + desk.engine.stats.retractions
    desk.finish()


def test_long_prompts_by_priority_are_looked_up_in_several_steps() -> None:
    desk = Desk(capacity=1 << 16, schedule_policy="priority")
    desk.engine.planner.lookup = 3500
    many = [desk.ask([7] * 1500, generate(2), priority=n) for n in range(9)]
    while desk.engine.busy:
        before = len(desk.engine.waiting)
        desk.step()
        assert before - len(desk.engine.waiting) <= 2
    assert {desk.done(request).reason for request in many} == {"length"}
    desk.finish()


def numbers(event: Event) -> int:
    """Log-probabilities that an event brings, beside those of the prompt's own tokens."""
    return sum(len(top or ()) for top in event.tops) if isinstance(event, PromptChunk) else 0


def test_a_step_sends_so_many_log_probabilities() -> None:
    """Half a million of them, of one prompt, are sent as they are computed and not in one event."""
    desk, most, total = Desk(capacity=1 << 16, chunked_prefill_size=4096), 0, 0
    context = desk.open([3, 5] * 2000)
    desk.advance(context, Score(0, top=128))
    while desk.engine.busy:
        events = desk.engine.step()
        desk._sort(events)
        sent = sum(map(numbers, events))
        total += sent
        most = max(most, sent)
    assert total == 3999 * 128
    assert most <= STEP_NUMBERS
    report = desk.prompt(next(iter(desk.events)))
    assert (report.start, len(report.logprobs), report.logprobs[0]) == (0, 4000, None)
    desk.finish()


def test_a_step_reports_so_many_log_probabilities() -> None:
    """A long prompt with 128 likely tokens at each position comes in shorter chunks."""
    reports = []
    for top in (0, 128):
        desk = Desk(capacity=1 << 16, chunked_prefill_size=8192)
        requests = [desk.ask([number] * 3000, Score(1, top=top)) for number in (1, 2)]
        desk.run()
        for batch in desk.worker.batches:
            tokens = sum(count for _, count in batch)
            assert (tokens - len(batch)) * top <= STEP_NUMBERS, "one token each, in any case"
        assert (len(desk.worker.batches) > 4) == (top > 0)
        reports.append([desk.prompt(request).logprobs for request in requests])
    assert reports[0] == reports[1]


def test_progress_of_a_prompt_is_one_event_a_pass() -> None:
    """Forced text comes before the prompt is computed, and does not end the reports."""
    desk = Desk(capacity=1 << 16, grammars=Forced(), chunked_prefill_size=16)
    goal = generate(400, constraint=Constraint("regex", LETTERS * 12))
    request = desk.ask(list(range(1, 41)), goal, report_prompt=True)
    silent = desk.ask(list(range(2, 42)), generate(8))
    desk.run()
    found = [e for e in desk.events[request] if isinstance(e, PromptProgress)]
    assert not any(isinstance(e, PromptProgress) for e in desk.events[silent])
    ready = [one.ready for one in found]
    assert ready == sorted(ready)
    assert len(found) > 2
    assert found[-1].ready == 40
    assert isinstance(desk.events[request][0], Tokens)
    assert desk.done(request).stats.cached_tokens == found[-1].cached == 0
