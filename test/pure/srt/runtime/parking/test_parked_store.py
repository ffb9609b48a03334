"""The store of parked contexts: what it holds, what gives way, and how everything ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sglang.srt.core.clock import ManualClock
from sglang.srt.core.ints import ints
from sglang.srt.core.messages import Close, Open, Park, Verb
from sglang.srt.engine.client import Client, EngineLost
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.requests.completion.held_context import Claim, Resumption
from sglang.srt.requests.completion.serving_engines import OneEngine
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.parking.parked_store import (
    ParkedContext,
    ParkedStore,
    ParkFacts,
    ParkingScope,
    size_of,
)
from sglang.srt.runtime.parking.text_index import ContextText

MINE, YOURS = ParkingScope("mine"), ParkingScope("yours")


class Engine:
    """The contexts that an engine would have open, and those with a claim."""

    def __init__(self) -> None:
        self.open: set[int] = set()
        self.parked: dict[int, Park] = {}
        self.client = Client(cast(Any, None), self.take)

    def take(self, verbs: Any) -> None:
        for verb in cast(list[Verb], verbs):
            if isinstance(verb, Open):
                self.open.add(verb.context)
            elif isinstance(verb, Park):
                self.parked[verb.context] = verb
            elif isinstance(verb, Close):
                self.open.discard(verb.context)
                self.parked.pop(verb.context, None)


class Timer:
    def __init__(self, moment: float, call: Callable[[], None]) -> None:
        self.moment, self.call, self.cancelled = moment, call, False

    def cancel(self) -> None:
        self.cancelled = True


class Shelf:
    """A store with an engine, a clock and timers that run when it is moved."""

    def __init__(self, most: int = 3, most_bytes: int = 1 << 20) -> None:
        self.engine, self.clock = Engine(), ManualClock()
        self.completion = SimpleNamespace(engines=OneEngine(self.engine.client))
        self.timers: list[Timer] = []
        self.ended: list[str] = []
        self.store = ParkedStore(
            cast(Completer, self.completion), most, most_bytes, self.clock, self.later
        )

    def later(self, seconds: float, call: Callable[[], None]) -> Timer:
        timer = Timer(self.clock.now() + seconds, call)
        self.timers.append(timer)
        return timer

    def park(
        self, text: str, scope: ParkingScope = MINE, name: str = "", deadline: float = 600.0
    ) -> ParkedContext | None:
        facts = ParkFacts(text, self.clock.now(), Claim("tool", scope.tenant, 2.0, deadline))
        ended = (lambda: self.ended.append(name)) if name else None
        tokens = ints(range(len(text)))
        return self.store.park(scope, tokens, ContextText(text.encode()), facts, ended)

    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for timer in list(self.timers):
            if not timer.cancelled and timer.moment <= self.clock.now():
                timer.cancel()
                timer.call()

    def texts(self, prompt: str, scope: ParkingScope = MINE) -> tuple[str, str] | None:
        found = self.store.match(scope, prompt)
        return None if found is None else (found[0].facts.rid, found[1])


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def test_a_context_that_is_held_again_keeps_its_deadline(shelf: Shelf) -> None:
    context = shelf.park("abc", name="n", deadline=100.0)
    assert context is not None
    shelf.wait(60.0)
    shelf.store.hold(context)
    assert [park.deadline for park in shelf.engine.parked.values()] == [100.0, 40.0]
    shelf.wait(41.0)
    assert shelf.ended == ["n"]


def test_park_opens_a_context_with_a_claim(shelf: Shelf) -> None:
    context = shelf.park("abc")
    assert context is not None
    ((number, park),) = shelf.engine.parked.items()
    assert park == Park(number, "tool", "mine", 2.0, 600.0)
    assert shelf.texts("abcde") == ("abc", "de")
    assert shelf.texts("abcde", YOURS) is None
    assert shelf.texts("abcde", ParkingScope("mine", "salt")) is None
    assert shelf.texts("abd") is None
    assert shelf.store.counts() == {
        "parked": 1, "parked_bytes": size_of(3), "resumed": 0, "expired": 0,
    }  # fmt: skip


def test_the_longest_text_wins(shelf: Shelf) -> None:
    shelf.park("ab")
    shelf.park("abcd")
    assert shelf.texts("abcdef") == ("abcd", "ef")
    assert shelf.texts("abc") == ("ab", "c")


def test_a_used_context_serves_forks_and_gives_way_first(shelf: Shelf) -> None:
    first, second = shelf.park("a"), shelf.park("b")
    assert first is not None
    assert second is not None
    shelf.store.begin(Resumption(second.number, 1, 0.0), "mine")
    assert shelf.store.counts()["parked"] == 1
    assert shelf.texts("bb") == ("b", "b"), "its tokens serve others that begin alike"
    shelf.park("c")
    shelf.park("d")
    assert shelf.texts("bb") is None, "used, it gave way before the older one"
    assert shelf.texts("aa") == ("a", "a")
    shelf.park("e")
    assert shelf.texts("aa") is None, "then the oldest"
    assert len(shelf.engine.open) == 3
    shelf.store.check()


def test_a_successor_takes_the_place_of_a_used_context(shelf: Shelf) -> None:
    first = shelf.park("a")
    assert first is not None
    resumption = Resumption(first.number, 1, 0.0)
    shelf.store.supersede(resumption, "mine")
    assert shelf.texts("ab") is not None, "it still waits"
    shelf.store.begin(resumption, "mine")
    shelf.store.supersede(resumption, "mine")
    assert shelf.texts("ab") is None
    assert shelf.store.empty


def test_named_contexts_give_way_to_nothing(shelf: Shelf) -> None:
    for name in "ab":
        shelf.park(name, name=name)
    shelf.park("c")
    room = shelf.store.reserve("mine", 10)
    assert shelf.texts("c") is None, "a context without a handle gives way"
    assert shelf.park("d") is None
    with pytest.raises(RequestError, match=r"--max-parked-per-key") as caught:
        shelf.store.reserve("mine", 10)
    assert caught.value.code == "queue_full"
    assert shelf.store.reserve("yours", 10) is not None, "other tenants have room of their own"
    room.release()
    room.release()
    assert shelf.park("d") is not None
    shelf.store.check()


def test_what_cannot_fit_closes_nothing() -> None:
    shelf = Shelf(most_bytes=3 * size_of(10))
    assert shelf.park("a") is not None
    with pytest.raises(RequestError, match=r"--max-parked-bytes"):
        shelf.store.reserve("mine", 10_000)
    assert shelf.texts("a") is not None
    shelf.store.check()


def test_bytes_are_bounded() -> None:
    shelf = Shelf(most_bytes=size_of(10))
    with pytest.raises(RequestError, match=r"--max-parked-bytes"):
        shelf.store.reserve("mine", 11)
    shelf.store.reserve("mine", 10).release()
    assert shelf.store.empty
    assert shelf.park("12345678901") is None
    shelf.park("1234567890")
    shelf.park("abc")
    assert shelf.store.counts()["parked_bytes"] == size_of(3)


def test_deadlines_close_contexts(shelf: Shelf) -> None:
    shelf.park("a", name="a", deadline=10)
    shelf.park("b", deadline=5)
    shelf.park("c", deadline=20)
    shelf.wait(7)
    assert shelf.store.counts()["expired"] == 1
    assert shelf.texts("b") is None
    shelf.wait(3)
    assert shelf.ended == ["a"]
    shelf.wait(10)
    assert shelf.store.empty
    assert shelf.engine.open == set()
    assert shelf.store.counts() == {"parked": 0, "parked_bytes": 0, "resumed": 0, "expired": 3}
    assert all(timer.cancelled for timer in shelf.timers)
    shelf.store.check()


def test_close_ends_by_name_tenant_or_adapter(shelf: Shelf) -> None:
    shelf.park("a", name="a")
    shelf.park("a", YOURS)
    shelf.park("b", ParkingScope("mine", "", "lora"))
    assert shelf.store.close("a", "mine") == 1
    assert shelf.ended == ["a"]
    assert shelf.store.close("a", "mine") == 0
    assert shelf.store.close(adapter="lora") == 1
    assert len(shelf.engine.open) == 1
    assert shelf.store.close() == 1
    assert shelf.engine.open == set()
    assert shelf.store.empty


def test_a_lost_engine_costs_no_tokens(shelf: Shelf) -> None:
    context = shelf.park("a")
    assert context is not None
    assert context.held is not None
    shelf.engine.client.fail(EngineLost("killed"))
    assert not context.held.open
    assert shelf.park("b") is not None, "what is parked without an engine is kept too"
    other = Engine()
    assert context.held.take(other.client) is None
    assert shelf.texts("ab") == ("a", "b")
    shelf.completion.engines.client = other.client
    shelf.store.close()
    assert other.open == set()


def test_forgotten_deadlines_are_dropped(shelf: Shelf) -> None:
    keeper = shelf.park("keeper")
    for _ in range(500):
        context = shelf.park("x")
        assert context is not None
        shelf.store.drop(context)
    assert keeper is not None
    assert len(shelf.store._deadlines) < 100
    shelf.store.check()


class Histories(RuleBasedStateMachine):
    """Random histories: the books balance, and the engine has the contexts of the store."""

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf(most=4, most_bytes=size_of(3) * 4)
        self.rooms: list[Any] = []

    @rule(text=st.text("ab", max_size=3), mine=st.booleans(), deadline=st.integers(1, 9))
    def park(self, text: str, mine: bool, deadline: int) -> None:
        self.shelf.park(text, MINE if mine else YOURS, deadline=deadline)

    @rule(tokens=st.integers(0, 6))
    def reserve(self, tokens: int) -> None:
        with suppress(RequestError):
            self.rooms.append(self.shelf.store.reserve("mine", tokens))

    @precondition(lambda self: self.rooms)
    @rule(name=st.text("c", min_size=1, max_size=2))
    def park_by_name(self, name: str) -> None:
        self.rooms.pop().release()
        self.shelf.store.reserve("mine", 0).release()
        self.shelf.park("", name=name, deadline=3)

    @rule(prompt=st.text("ab", max_size=4), mine=st.booleans())
    def resume(self, prompt: str, mine: bool) -> None:
        scope = MINE if mine else YOURS
        found = self.shelf.store.match(scope, prompt)
        if found is not None and not found[0].named:
            context = found[0]
            number = None if context.held is None else context.held.take(self.shelf.engine.client)
            self.shelf.engine.open.discard(number or 0)  # closed by the request that took it
            self.shelf.store.begin(Resumption(context.number, 0, 0.0), scope.tenant)

    @rule(seconds=st.integers(0, 5))
    def wait(self, seconds: int) -> None:
        self.shelf.wait(seconds)

    @rule(owner=st.sampled_from([None, "mine", "yours"]))
    def close(self, owner: str | None) -> None:
        self.shelf.store.close(owner=owner)

    @invariant()
    def the_books_balance(self) -> None:
        store = self.shelf.store
        store.check()
        held = [one.held for one in store._all()]
        assert len(self.shelf.engine.open) == sum(one is not None and one.open for one in held)

    def teardown(self) -> None:
        self.shelf.store.close()
        while self.rooms:
            self.rooms.pop().release()
        assert self.shelf.store.empty
        assert self.shelf.engine.open == set()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
