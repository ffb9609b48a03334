"""Errors about a constrained text that was cut before it was whole."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import sglang as sgl
from sglang.backend.output_constraint import Dtype
from sglang.ir.source_location import Location
from sglang.run.typed import Typed

TEXT = '{"name": "Nora Hill of Lisbon", "age": 34}'
SCHEMA = {"type": "object", "required": ["age"]}


@sgl.function
def sheet(s, **given):
    s += "Sheet: " + sgl.gen("sheet", json_schema=SCHEMA, **given)


LINE = inspect.getsourcelines(sheet.func)[1] + 2


def mock(**traits: Any) -> sgl.Mock:
    return sgl.Mock([TEXT] * 3, constraints=["json_schema"], **traits)


def refused(state: sgl.ProgramState) -> sgl.InvalidOutput:
    with pytest.raises(sgl.InvalidOutput) as refusal:
        state.value("sheet")
    assert isinstance(refusal.value, sgl.ProgramError)
    return refusal.value


@pytest.mark.parametrize("given", [{"max_tokens": 3}, {}])
def test_a_cut_text_names_the_limit_and_the_line(given: dict[str, Any]) -> None:
    state = sheet.run(backend=mock(), **(given or {"max_new_tokens": 3}))
    error = refused(state)
    assert str(error).startswith("stopped at max_tokens=3: not JSON: EOF")
    assert str(error).endswith(f"; raise max_tokens at {__file__}:{LINE}")
    assert isinstance(error, sgl.ProgramError)
    assert (error.line, error.text) == (LINE, state["sheet"])
    assert error.text == '{"name": "Nora Hill'


def test_a_whole_text_that_is_invalid_names_the_line_alone() -> None:
    state = sheet.run(backend=sgl.Mock(['{"name": "N"}'], constraints=["json_schema"]))
    assert str(refused(state)) == f"'age' is a required property at {__file__}:{LINE}"


def test_each_of_several_texts_is_judged_by_its_own_end() -> None:
    texts = [['{"age": 1}', TEXT]]
    state = sheet.run(backend=sgl.Mock(texts, constraints=["json_schema"]), max_tokens=3, n=2)
    assert str(refused(state)).startswith("stopped at max_tokens=3: ")


def test_the_line_is_that_of_the_gen_also_in_a_fork() -> None:
    @sgl.function
    def program(s):
        forks = s.fork(2)
        forks += sgl.gen("sheet", json_schema=SCHEMA, max_tokens=3)
        forks[1].value("sheet")

    with pytest.raises(sgl.InvalidOutput) as refusal:
        program.run(backend=mock())
    line = inspect.getsourcelines(program.func)[1] + 3
    assert str(refusal.value).endswith(f"{__file__}:{line}")


@pytest.mark.parametrize("compiled", [False, True], ids=["run", "graph"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_part_of_an_option_is_no_answer(compiled: bool, stream: bool) -> None:
    @sgl.function
    def pick(s):
        s += "City:" + sgl.gen("city", one_of=[" New York", " Rome"], max_tokens=1)
        s += "!"

    line = inspect.getsourcelines(pick.func)[1] + 2
    program = pick.compile() if compiled else pick
    backend = sgl.Mock([" New York"], constraints=["choices"])
    with pytest.raises(sgl.ProgramError) as refusal:
        program.run(backend=backend, stream=stream)["city"]
    assert str(refusal.value) == (
        "stopped at max_tokens=1: ' New' is none of ' New York', ' Rome'; raise max_tokens at "
        f"{__file__}:{line}"
    )


def test_an_option_has_room_and_no_stop_inside() -> None:
    options = [f"{'word ' * 200}end", "a\nb"]

    @sgl.function
    def pick(s):
        s += "A:" + sgl.gen("first", one_of=options) + sgl.gen("second", one_of=options)

    backend = sgl.Mock(options, constraints=["choices"])
    state = pick.run(backend=backend, stop="\n", max_new_tokens=4)
    assert [state["first"], state["second"]] == options


def test_a_text_that_fills_the_context_says_so() -> None:
    typed = Typed(Dtype("int"), 128, Location("a.py", 3))
    with pytest.raises(sgl.InvalidOutput) as refusal:
        typed.value("x", {"finish_reason": {"type": "length", "length": 57}})
    message = str(refusal.value)
    assert message.startswith("stopped after 57 tokens, where the context was full: 'x' is not")
    assert message.endswith("; shorten the prompt at a.py:3")


def test_the_last_answer_of_an_api_says_that_it_was_cut() -> None:
    with pytest.raises(sgl.InvalidOutput) as refusal:
        sheet.run(backend=sgl.Mock([TEXT] * 3), max_tokens=3)
    message = str(refusal.value)
    assert "stopped at max_tokens=3 and is not valid: not JSON" in message
    assert message.endswith(f"; raise max_tokens at {__file__}:{LINE}")
