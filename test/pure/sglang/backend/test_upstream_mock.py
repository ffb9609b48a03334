"""Programs as people write them: scripted on the mock, and compiled or refused with the line."""

from __future__ import annotations

import linecache
from collections.abc import Iterator

import pytest
import sglang as sgl
from helpers.programs_upstream import CASES, Case


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Iterator[Case]:
    yield CASES[request.param]
    sgl.set_default_backend(None)


def mock(case: Case, times: int = 1) -> None:
    """A fresh script as the default backend."""
    script = case.script if isinstance(case.script, dict) else case.script * times
    sgl.set_default_backend(sgl.Mock(script))


def test_it_gives_its_result_also_streamed_and_in_batches(case: Case) -> None:
    mock(case, times=4)
    state = case.program.run(**case.arguments, stream=True)
    assert "".join(state.text_iter()) == state.text()
    assert state.ret_value == case.result
    states = case.program.run_batch([case.arguments] * 3, num_threads=1)
    assert [(s.text(), s.ret_value) for s in states] == [(state.text(), case.result)] * 3


def test_compiled_it_gives_the_same_or_is_refused_with_the_line(case: Case) -> None:
    if case.refused:
        with pytest.raises(sgl.TraceError, match=r"control flow.* at \S+:\d+$") as refusal:
            case.program.compile()
        file, line = str(refusal.value).split()[-1].split(":")
        assert linecache.getline(file, int(line)).strip() == case.refused
        return
    mock(case)
    plain = case.program.run(**case.arguments)
    mock(case)
    state = case.program.compile().run(**case.arguments)
    assert state.text() == plain.text()
    assert state.ret_value == case.result
