"""The queue of a lane: whose turn is next."""

from __future__ import annotations

import threading
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.inferlet.host.turn_queue import TurnQueue


def test_a_tenant_waits_for_one_job_of_another() -> None:
    queue: TurnQueue[str] = TurnQueue()
    for number in range(20):
        queue.put("a", f"a{number}")
    assert queue.get() == "a0"
    queue.put("b", "b0")
    queue.put("b", "b1")
    queue.put("c", "c0")
    assert [queue.get() for _ in range(6)] == ["b0", "c0", "a1", "b1", "a2", "a3"]


@given(st.lists(st.sampled_from(["a", "b", "c", None]), max_size=60))
def test_no_tenant_is_passed_twice(steps: list[str | None]) -> None:
    """None: get. Each tenant's jobs leave in their order, and while one waits, each other tenant
    has at most one done."""
    queue: TurnQueue[tuple[str, int]] = TurnQueue()
    put: Counter[str] = Counter()
    done: Counter[str] = Counter()
    passed: dict[str, Counter[str]] = {}  # since a tenant waits: jobs of others that were given
    left = sum(1 if step else 0 for step in steps)
    for step in [*steps, *[None] * left]:
        if step is not None:
            queue.put(step, (step, put[step]))
            put[step] += 1
            passed.setdefault(step, Counter())
        elif put != done:
            found = queue.get()
            assert found is not None
            tenant, number = found
            assert number == done[tenant]
            done[tenant] += 1
            passed.pop(tenant)
            for others in passed.values():
                others[tenant] += 1
                assert max(others.values()) == 1
            if put[tenant] > done[tenant]:
                passed[tenant] = Counter()
    assert put == done


def test_a_closed_queue_gives_what_it_has_then_none() -> None:
    queue: TurnQueue[int] = TurnQueue()
    queue.put("a", 1)
    queue.close()
    assert [queue.get(), queue.get(), queue.get()] == [1, None, None]


def test_a_thread_that_waits_gets_a_job() -> None:
    queue: TurnQueue[int] = TurnQueue()
    found: list[int | None] = []
    thread = threading.Thread(target=lambda: found.extend([queue.get(), queue.get()]))
    thread.start()
    queue.put("a", 1)
    queue.close()
    thread.join(10)
    assert found == [1, None]
