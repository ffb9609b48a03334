"""Threads and memory stay bounded, however wide a program forks and however long a batch is."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
import sglang as sgl
from helpers.counted import Counted, reaches
from helpers.threads import running_threads
from sglang.ir.params import DEFAULTS
from sglang.run.history import HISTORY
from sglang.run.run_scope import Run
from sglang.run.stream_executor import StreamExecutor


@sgl.function
def item(s, number):
    s += f"Item {number}: " + sgl.gen("x")
    return s["x"]


@pytest.mark.slow
def test_ten_thousand_items_use_no_more_threads_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sgl.global_config, "max_threads", 8)
    backend, before = Counted(), running_threads()
    states = item.run_batch(
        [(n,) for n in range(10_000)], backend=backend, num_threads=16, generator_style=True
    )
    assert sum(state.ret_value == "a b" for state in states) == 10_000
    assert backend.calls == 10_000
    assert backend.threads <= before + 8 + 16
    assert reaches(lambda: running_threads() <= before)


def test_a_thousand_forks_use_no_more_threads_than_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sgl.global_config, "max_threads", 8)
    backend, before = Counted(), running_threads()

    @sgl.function
    def program(s):
        s += "Root."
        forks = s.fork(1000)
        forks += sgl.gen("x")
        forks.join()
        return len(s["x"])

    assert program.run(backend=backend).ret_value == 1000
    assert backend.threads <= before + 8
    assert reaches(lambda: running_threads() <= before)


def test_who_enters_a_cancelled_run_has_failed() -> None:
    run = Run()
    run.cancel(ZeroDivisionError("mine"))
    late = StreamExecutor(Counted(), DEFAULTS, run=run)
    late.wait()
    with pytest.raises(ZeroDivisionError, match="mine"):
        late.check()


def peak_bytes(items: list[tuple[str]]) -> int:
    """Most memory in use while a batch is run and its states are dropped."""
    HISTORY.clear()
    gc.collect()
    tracemalloc.start()
    for state in item.run_batch(items, backend=Counted(), num_threads=4, generator_style=True):
        assert state.ret_value == "a b"
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.slow
def test_memory_does_not_grow_with_the_batch() -> None:
    text = "x" * 20_000  # so long that a kept copy would show
    short = peak_bytes([(text + str(n),) for n in range(200)])
    long = peak_bytes([(text + str(n),) for n in range(2000)])
    assert long < 1.5 * short + 1_000_000
