"""Programs as people write them: the same text on the embedded model in process and over HTTP, by
every way of running, and on a mock that is scripted with the model's own answers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import sglang as sgl
from helpers.programs_upstream import CASES, Case
from sglang.backend.base import Choose, Commit
from sglang.history import HISTORY

pytest.importorskip("torch")
SETTINGS = {"max_total_tokens": 32768, "log_level": "warning", "device": "cpu", "threads": 1}


@pytest.fixture(scope="module")
def engine() -> Iterator[sgl.Engine]:
    with sgl.Engine(**SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="module")
def runtime() -> Iterator[sgl.Runtime]:
    with sgl.Runtime(**SETTINGS) as runtime:
        yield runtime


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    yield CASES[request.param]
    sgl.set_default_backend(None)


def outcome(state: sgl.ProgramState) -> tuple[Any, ...]:
    return state.text(), state.ret_value, {n: state[n] for n in state._executor.stream.variables}


def in_all_ways(case: Case, backend: Any) -> Iterator[sgl.ProgramState]:
    sgl.set_default_backend(backend)
    arguments = {**case.arguments, "temperature": 0.0}
    yield case.program.run(**arguments)
    streamed = case.program.run(**arguments, stream=True)
    assert "".join(streamed.text_iter()) == streamed.text()
    yield streamed
    yield asyncio.run(case.program.arun(**arguments))
    yield from case.program.run_batch([case.arguments] * 2, temperature=0.0)
    if not case.refused:
        yield case.program.compile().run(**arguments)


def test_the_same_text_everywhere(case: Case, engine: sgl.Engine, runtime: sgl.Runtime) -> None:
    HISTORY.clear()
    sgl.set_default_backend(engine)
    expected = outcome(case.program.run(**case.arguments, temperature=0.0))
    said = {
        entry.call.prompt.text: entry.answer.text
        if isinstance(entry.call, Choose)
        else entry.answer[0].text
        for entry in HISTORY.last(100)
        if not isinstance(entry.call, Commit)
    }
    mock = sgl.Mock(lambda prompt, params: said[prompt.text])
    assert said
    for backend in (engine, runtime, mock):
        for state in in_all_ways(case, backend):
            assert outcome(state) == expected
