"""Tools that programs give: what of a function, a type or a definition the model is shown."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import pytest
import sglang as sgl
from pydantic import BaseModel, Field
from sglang.errors import InvalidOutput
from sglang.tools.program_tool import text_of_result, tool_of, tools_of


def weather(city: str, unit: Literal["C", "F"] = "C", days: Annotated[int, Field(ge=1)] = 1) -> str:
    """Weather of a city."""
    return f"{city} {unit} {days}"


class Reply(BaseModel):
    """The answer."""

    text: str
    parts: list[Reply] = []


@dataclass
class Point:
    x: int
    y: int = 0


class Adder:
    def __call__(self, a: int) -> int:
        return a + 1


def test_a_function_is_shown_by_its_signature() -> None:
    tool = tool_of(weather)
    assert (tool.name, tool.description) == ("weather", "Weather of a city.")
    assert tool.parameters == {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
            "days": {"type": "integer", "minimum": 1, "default": 1},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def test_arguments_become_the_types_of_the_function() -> None:
    tool = tool_of(weather)
    assert tool.argued('{"city": "Rome", "days": 3}') == {"city": "Rome", "days": 3}
    with pytest.raises(InvalidOutput, match="city: Field required"):
        tool.argued("{}")
    with pytest.raises(InvalidOutput, match="days: Input should be greater than or equal to 1"):
        tool.argued('{"city": "Rome", "days": 0}')
    with pytest.raises(InvalidOutput, match="Extra inputs"):
        tool.argued('{"city": "Rome", "month": 3}')


def test_parameters_may_have_any_name() -> None:
    def odd(schema: str, model_config: int, _private: bool, copy: list[int]) -> None: ...

    tool = tool_of(odd)
    assert list(tool.parameters["properties"]) == ["schema", "model_config", "_private", "copy"]
    given = '{"schema": "a", "model_config": 1, "_private": true, "copy": [2]}'
    assert tool.argued(given) == {"schema": "a", "model_config": 1, "_private": True, "copy": [2]}


def test_objects_that_can_be_called_are_functions() -> None:
    half = functools.partial(weather, unit="F")
    half.__name__ = "half"  # type: ignore[attr-defined]
    assert tool_of(half).argued('{"city": "Rome"}') == {"city": "Rome"}
    assert tool_of(Adder()).argued('{"a": 1}') == {"a": 1}


def test_a_type_becomes_an_object_and_is_left_to_the_program() -> None:
    tool = tool_of(Reply)
    assert tool.function is None
    assert tool.description == "The answer."
    assert tool.parameters["type"] == "object"
    found = tool.argued('{"text": "a", "parts": [{"text": "b"}]}')
    assert found == Reply(text="a", parts=[Reply(text="b")])
    assert tool_of(Point).argued('{"x": 1}') == Point(1)
    assert tool_of(Point).description == ""


@pytest.mark.parametrize(
    "given",
    [
        {"type": "function", "function": {"name": "now", "description": "d"}},
        {"name": "now", "description": "d", "parameters": {"type": "object", "properties": {}}},
        {"name": "now", "description": "d", "input_schema": {"properties": {}}},
    ],
)
def test_definitions_of_both_apis_are_taken(given: dict[str, Any]) -> None:
    tool = tool_of(given)
    assert (tool.name, tool.description) == ("now", "d")
    assert tool.parameters == {"type": "object", "properties": {}}
    assert tool.argued("") == {}


@sgl.function
def program(s: Any) -> None: ...


def many(*names: str) -> None: ...


def unshown(value: Adder) -> None: ...


def yields(n: int) -> Any:
    yield n


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ([], ValueError, "tools is empty"),
        (weather, TypeError, "give a list of tools"),
        ({"name": "x"}, TypeError, "give a list of tools"),
        ([3], TypeError, "a tool is 3; give a function"),
        ([int], TypeError, "tool 'int' has no fields"),
        ([weather, weather], ValueError, "two tools are named 'weather'"),
        ([weather] * 129, ValueError, "tools has 129 entries; at most 128"),
        ([program], TypeError, "tool 'program' is a program; give a function that runs it"),
        ([many], TypeError, "takes 'names' of any number; a model gives"),
        ([unshown], TypeError, "of the parameters of tool 'unshown'"),
        ([yields], TypeError, "tool 'yields' yields"),
        ([lambda x: x], ValueError, "a tool is named '<lambda>'"),
        ([{"name": "a b"}], ValueError, "a tool is named 'a b'; use 1 to 64 letters"),
        ([{"name": "a", "parameters": {"type": "array"}}], ValueError, "of type 'array'"),
        (
            [{"name": "a", "parameters": {"type": 3}}],
            ValueError,
            "the schema of tool 'a' is not a JSON schema",
        ),
    ],
)
def test_what_is_no_tool_is_refused(given: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        tools_of(given)


def test_results_become_text() -> None:
    assert text_of_result("f", None) == ""
    assert text_of_result("f", "plain") == "plain"
    assert text_of_result("f", {"a": [1, Point(1, 2), Reply(text="é")]}) == (
        '{"a":[1,{"x":1,"y":2},{"text":"é","parts":[]}]}'
    )
    with pytest.raises(ValueError, match="tool 'f' returned <object"):
        text_of_result("f", object())
