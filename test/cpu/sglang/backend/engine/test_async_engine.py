"""Programs in an event loop on the real runtime: the same texts, and no threads."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import sglang as sgl
from helpers.threads import running_threads

pytest.importorskip("torch")

SETTINGS = {"max_total_tokens": 32768, "log_level": "warning", "device": "cpu", "threads": 1}
WIDTH = 40


@pytest.fixture(scope="module", params=["engine", "http"])
def backend(request: pytest.FixtureRequest) -> Iterator[Any]:
    kind: Any = sgl.Engine if request.param == "engine" else sgl.Runtime
    with kind(**SETTINGS) as started:
        yield getattr(started, "endpoint", started)


@sgl.function
def plain(s, topic):
    s += sgl.user("Tell me about " + topic)
    with s.assistant():
        s += sgl.gen("first", max_tokens=4)
        forks = s.fork(WIDTH)
        forks += lambda i: f" {i}:" + sgl.gen("point", max_tokens=2)
        forks.join()
        s += sgl.select("mark", ["good", "bad"])
    return running_threads()


@sgl.function
async def program(s, topic):
    s += sgl.user("Tell me about " + topic)
    with s.assistant():
        s += sgl.gen("first", max_tokens=4)
        forks = s.fork(WIDTH)
        forks += lambda i: f" {i}:" + sgl.gen("point", max_tokens=2)
        await forks.ajoin()
        s += sgl.select("mark", ["good", "bad"])
    return running_threads()


def test_the_same_texts_without_threads(backend: Any) -> None:
    expected = plain.run("foxes", backend=backend, temperature=0)

    async def main() -> None:
        before = running_threads()
        for function, more in [(program, 0), (plain, 1)]:
            state = await function.arun("foxes", backend=backend, temperature=0)
            assert state.text() == expected.text()
            assert state["point"] == expected["point"]
            assert state.ret_value <= before + more
        streamed = await program.arun("foxes", backend=backend, temperature=0, stream=True)
        pieces = [piece async for piece in streamed.text_async_iter()]
        assert "".join(pieces) == expected.text()
        assert len(pieces) >= 3

    asyncio.run(main())


def test_a_batch_agrees_with_single_runs(backend: Any) -> None:
    @sgl.function
    async def short(s, topic):
        s += "Tell me about " + topic + ":" + sgl.gen("x", max_tokens=4)
        return running_threads()

    topics = [f"animal {number}" for number in range(60)]

    async def main() -> tuple[list[Any], int]:
        before = running_threads()
        batch = short.arun_batch([(t,) for t in topics], backend=backend, temperature=0)
        return [(state["x"], state.ret_value) async for state in batch], before

    results, before = asyncio.run(main())
    assert max(threads for _, threads in results) <= before
    single = asyncio.run(short.arun(topics[7], backend=backend, temperature=0))
    assert results[7][0] == single["x"]
