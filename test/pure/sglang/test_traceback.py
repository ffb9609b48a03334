"""The traceback of an error ends at the statement of the program that failed."""

from __future__ import annotations

import asyncio
import traceback
from pathlib import Path

import pytest
import sglang as sgl
from helpers.counted import Counted


@sgl.function
def in_a_fork(s, read):
    forks = s.fork(2)
    forks[0] += "fine " + sgl.gen("x")
    forks[1] += "bad " + sgl.gen("x")  # refused
    if read:
        forks.join()


@sgl.function
async def awaited(s, read):
    s += "bad " + sgl.gen("x")  # refused
    if read:
        await s.aget("x")


@sgl.function
def its_own(s, read):
    s += "fine " + sgl.gen("x")
    return [][len(s["x"])]  # refused


def run(program: sgl.SglFunction, read: bool) -> sgl.ProgramState:
    if program.is_async:
        return asyncio.run(program.arun(read, backend=Counted()))
    return program.run(read, backend=Counted())


def shown(error: BaseException) -> str:
    """The traceback as Python prints it, the causes left out."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__, chain=False))


@pytest.mark.parametrize("read", [True, False])
@pytest.mark.parametrize("program", [in_a_fork, awaited, its_own])
def test_it_ends_at_the_programs_line(program: sgl.SglFunction, read: bool) -> None:
    with pytest.raises((sgl.ProgramError, IndexError)) as caught:
        run(program, read)
    *_, place, statement, message = [
        line for line in shown(caught.value).splitlines() if set(line) - set(" ~^")
    ]
    assert Path(place.split('"')[1]) == Path(__file__)
    assert statement.endswith("# refused")
    if program is not its_own:
        assert isinstance(caught.value, sgl.ProgramError)
        assert message.endswith(f":{caught.value.line}")
        assert f"line {caught.value.line}, " in place


def test_it_is_the_same_however_often_it_is_read() -> None:
    state = in_a_fork.run_batch([(False,)], backend=Counted(), return_errors=True)[0]
    first, second = state.error(), state.error()
    assert first is not None
    assert second is not None
    assert shown(first) == shown(second)
