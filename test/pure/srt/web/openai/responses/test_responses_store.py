"""The store of responses: bounded, fair, and never a conversation without its beginning."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.web import response_store as responses_store
from sglang.srt.web.response_store import OVERHEAD, ResponseStore, StoredResponse


def record(id: str, tenant: str = "", previous: str = "", size: int = 100) -> StoredResponse:
    return StoredResponse(id, tenant, previous, b"[]", b"x" * (size - 2))


def held(store: ResponseStore, tenant: str = "") -> str:
    return "".join(name for name in "abcdefgh" if store.peek(tenant, name) is not None)


def store_of(count: int) -> ResponseStore:
    """A store with room for so many records of 100 bytes."""
    return ResponseStore(count * (OVERHEAD + 100))


def test_the_longest_unused_gives_way() -> None:
    store = store_of(3)
    for name in "abc":
        assert store.put(record(name))
    store.find("", "a")
    store.peek("", "b")
    assert store.put(record("d"))
    assert held(store) == "acd"
    assert (len(store), store.size) == (3, 3 * (OVERHEAD + 100))


def test_the_count_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(responses_store, "MAX_COUNT", 2)
    store = store_of(100)
    for name in "abc":
        store.put(record(name))
    assert held(store) == "bc"


def test_a_conversation_loses_its_end_first() -> None:
    store = store_of(4)
    for name, previous in ("a", ""), ("b", "a"), ("c", "b"), ("d", ""):
        store.put(record(name, previous=previous))
    store.put(record("e"))
    assert held(store) == "abde"
    assert [each.id for each in store.chain(store.find("", "b"))] == ["b", "a"]


def test_who_holds_most_gives_way() -> None:
    store = store_of(4)
    store.put(record("a", "one"))
    for name in "bcdefg":
        store.put(record(name, "two"))
    assert (held(store, "one"), held(store, "two")) == ("a", "efg")
    assert store.find("two", "a") is None
    assert store.find("one", "e") is None


def test_what_does_not_fit() -> None:
    store = store_of(2)
    assert not store.put(record("a", size=5000))
    assert (len(store), store.size) == (0, 0)
    assert not ResponseStore(0).put(record("a"))


def test_what_is_written_stays() -> None:
    store = store_of(2)
    live = record("a")
    live.live, live.events = object(), []
    assert store.put(live)
    for name in "bcd":
        store.put(record(name))
    assert held(store) == "ad"
    assert store.live() == store.live("") == 1
    assert store.live("other") == 0
    store.add(live, b"e" * 500)  # d gives way
    assert held(store) == "a"
    assert live.events == [b"e" * 500]
    store.add(live, b"e" * 5000)
    assert live.events is None
    assert store.size == OVERHEAD + 100
    store.settle(live, b"x" * 300)
    assert store.size == OVERHEAD + 302
    store.put(record("e"))
    assert held(store) == "e"  # both together are too much


def test_what_was_deleted_stays_deleted() -> None:
    store = store_of(2)
    live = record("a")
    live.live, live.events = object(), []
    store.put(live)
    store.drop(live)
    store.add(live, b"e")
    store.settle(live, b"x")
    store.drop(live)
    assert (len(store), store.size, held(store)) == (0, 0, "")


steps = st.tuples(st.sampled_from(("put", "find", "drop", "add", "settle")),
                  st.sampled_from("abcdefgh"), st.sampled_from(("", "t")),
                  st.sampled_from("abcdefgh"), st.integers(2, 3000))  # fmt: skip


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=40))
def test_the_books_balance(history: list[tuple[str, str, str, str, int]]) -> None:
    store = store_of(4)
    for i, (step, name, tenant, other, size) in enumerate(history):
        found = store.peek(tenant, name)
        if step == "put" and found is None:
            previous = other if other < name and store.peek(tenant, other) else ""
            fresh = record(name, tenant, previous, size)
            if i % 3 == 0:
                fresh.live, fresh.events = object(), []
            if not store.put(fresh):
                store.drop(fresh)
        elif found is not None and step == "find":
            store.find(tenant, name)
        elif found is not None and step == "drop":
            store.drop(found)
        elif found is not None and step == "add" and found.live:
            store.add(found, b"e" * size)
        elif found is not None and step == "settle" and found.live:
            store.settle(found, b"x" * size)
        records = [r for shelf in store._shelves.values() for r in shelf.records.values()]
        assert len(records) == len(store)
        assert sum(each.size for each in records) == store.size
        for each in records:
            events = sum(map(len, each.events or ()))
            assert each.size == OVERHEAD + len(each.items) + len(each.value) + events
        assert store.size <= store.limit
        assert all(shelf.records for shelf in store._shelves.values())
