"""Calls of threads, which are made on an event loop of the backend's own: how they end."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import pytest
import sglang as sgl
from helpers.fake_openai import FakeOpenAI, Late
from helpers.threads import running_threads
from helpers.waiting import until
from sglang import errors
from sglang.backend.base import Choose, Complete, Prompt, StreamCall
from sglang.backend.loop_thread import LoopThread
from sglang.backend.openai.openai_backend import OpenAI
from sglang.backend.service_backend import ApiBackend
from sglang.ir.choices import token_length_normalized
from sglang.ir.params import DEFAULTS

PROMPT = Prompt("Hi", ({"role": "user", "content": "Hi"},))
CALLS: list[Any] = [
    Complete(PROMPT, DEFAULTS),
    StreamCall(PROMPT, DEFAULTS, lambda _: None),
    Choose(PROMPT, ("a", "b"), token_length_normalized),
]


@pytest.fixture
def service() -> Iterator[FakeOpenAI]:
    """One that does not answer, and notices clients that have gone."""
    with FakeOpenAI(Late(3600, "a b c d")) as service:
        yield service


@pytest.fixture
def backend(service: FakeOpenAI) -> Iterator[OpenAI]:
    backend = OpenAI("m", base_url=service.url, max_concurrency=2)
    yield backend
    backend.shutdown()


@pytest.mark.parametrize("stream", [False, True])
def test_a_program_that_raises_aborts_its_calls(
    service: FakeOpenAI, backend: OpenAI, stream: bool
) -> None:
    @sgl.function
    def program(s: Any) -> None:
        s += sgl.user("Hi")
        forks = s.fork(2)
        forks += sgl.assistant(sgl.gen("x") if stream else sgl.select("x", ["a", "b"]))
        until(lambda: service.under_way == 2)
        raise KeyError("the program's own")

    with pytest.raises(KeyError, match="the program's own"):
        program.run(backend=backend, stream=stream).text()
    until(lambda: service.connections == 0)
    assert len(service.bodies) == 2


def place() -> tuple[int, int]:
    """Frame and instruction offset of the main thread."""
    frame = sys._current_frames()[threading.main_thread().ident or 0]
    return id(frame), frame.f_lasti


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts what it runs in the background with interrupts ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("call", CALLS, ids=lambda call: type(call).__name__)
def test_an_interrupted_call_is_aborted(service: FakeOpenAI, backend: OpenAI, call: Any) -> None:
    def interrupt() -> None:
        until(lambda: service.under_way)
        at = None  # an interrupt on the way into a wait is only seen after it
        while at != (at := place()):
            time.sleep(0.2)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            call.do(backend)
    until(lambda: service.connections == 0)


@pytest.mark.parametrize("call", CALLS, ids=lambda call: type(call).__name__)
def test_a_call_interrupted_as_it_begins_is_aborted(
    service: FakeOpenAI, backend: OpenAI, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The calling thread may get its next turn only when the call is in flight."""
    begin = LoopThread._begin

    def interrupted(*args: Any) -> None:
        begin(*args)
        until(lambda: service.under_way)
        raise KeyboardInterrupt

    monkeypatch.setattr(LoopThread, "_begin", interrupted)
    with pytest.raises(KeyboardInterrupt):
        call.do(backend)
    until(lambda: service.connections == 0)


def test_a_call_that_cannot_begin() -> None:
    loops = LoopThread()
    with pytest.raises(TypeError, match="positional"):
        loops.run(name, 1)
    loops.close()


@pytest.mark.parametrize("call", CALLS, ids=lambda call: type(call).__name__)
def test_shutdown_ends_calls_and_leaves_nothing(
    service: FakeOpenAI, backend: OpenAI, call: Any
) -> None:
    before = running_threads()
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(call.do, backend) for _ in range(3)]
        until(lambda: service.under_way == 2)
        backend.shutdown()
        for done in waiting:
            with pytest.raises(errors.BackendError, match="OpenAI backend has been shut down"):
                done.result()
    until(lambda: running_threads() <= before)
    until(lambda: service.connections == 0)


@pytest.mark.slow
def test_a_backend_that_is_garbage_leaves_nothing(service: FakeOpenAI) -> None:
    service.script = "fine"
    before = set(threading.enumerate())
    backend = OpenAI("m", base_url=service.url)
    assert backend.complete(PROMPT, DEFAULTS)[0].text == "fine"
    begun = {one for one in threading.enumerate() if one.name == "sglang-api"} - before
    assert begun
    del backend
    gc.collect()
    until(lambda: service.connections == 0)
    until(lambda: not any(thread.is_alive() for thread in begun))


def test_a_backend_lacks_what_it_does_not_define() -> None:
    backend = ApiBackend()
    for call in CALLS:
        with pytest.raises(errors.Unsupported, match="backend has no"):
            call.do(backend)
        with pytest.raises(errors.Unsupported, match="backend has no"):
            asyncio.run(call.ado(backend))
    backend.shutdown()


async def numbers(count: int) -> AsyncGenerator[int, None]:
    for number in range(count):
        yield number
        await asyncio.sleep(0)


async def name() -> str:
    return threading.current_thread().name


def test_a_loop_thread() -> None:
    loops = LoopThread()
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: loops.run(name), range(40))) == {"sglang-api"}
    assert list(loops.iterate(numbers, 3)) == [0, 1, 2]
    with pytest.raises(TypeError):
        list(loops.iterate(numbers, None))
    loops.close()
    loops.close()
    with pytest.raises(CancelledError):
        loops.run(name)


def test_a_loop_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = LoopThread()
    with monkeypatch.context() as patch:
        patch.setattr(asyncio, "new_event_loop", Mock(side_effect=OSError(24, "too many")))
        with pytest.raises(OSError, match="too many"):
            loops.run(name)
    assert loops.run(name) == "sglang-api"
    loops.close()


def test_a_thread_that_is_gone_is_replaced() -> None:
    """A forked process has none of its parent's threads."""
    loops = LoopThread()
    assert loops.run(name) == "sglang-api"
    loops._end()
    assert loops._thread
    loops._thread.join()
    assert loops.run(name) == "sglang-api"
    loops.close()
