"""Types of generated text: schema, typed object, and the object while its text is growing."""

from __future__ import annotations

import enum
import json
import typing
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field, RootModel, TypeAdapter
from sglang.backend.output_types import json_schema_of, parse, parse_partial
from sglang.errors import InvalidOutput
from typing_extensions import Required


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Item(BaseModel):
    name: str
    price: float = Field(gt=0)
    tags: list[str] = []
    made: Optional[date] = None  # noqa: UP045
    color: Literal["red", "blue"] = "red"
    kind: str = Field("", alias="type")


@dataclass(frozen=True)
class Order:
    items: list[Item]
    number: int = 0
    notes: list[str] = field(default_factory=list)
    parent: Order | None = None


class Place(typing.TypedDict, total=False):
    name: Required[str]
    height: Annotated[int, Field(ge=0)]


class Names(RootModel[dict[int, list[str]]]):
    pass


class Point(NamedTuple):
    x: int
    y: int


OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ITEM = '{"name": "pen", "price": 2, "type": "tool"}'
PEN = Item(name="pen", price=2, type="tool")

TYPED: list[tuple[Any, str, Any]] = [
    (Item, ITEM, PEN),
    (Order, f'{{"items": [{ITEM}], "parent": {{"items": []}}}}', Order([PEN], parent=Order([]))),
    (Place, '{"name": "K2", "height": 8611}', {"name": "K2", "height": 8611}),
    (list[Place] | None, '[{"name": "K2"}]', [{"name": "K2"}]),
    (Names, '{"1": ["a"]}', Names({1: ["a"]})),
    (Point, "[1, 2]", Point(1, 2)),
    (Color, '"red"', Color.RED),
    (Color, " blue\n", Color.BLUE),
    (Literal["a", "1"], "a", "a"),
    (Literal["a", "1"], "1", "1"),
    (Literal[1, 2], "2", 2),
    (int | str, '"x"', "x"),
    (Optional[int], "null", None),  # noqa: UP045
    (dict[str, int], '{"a": 1}', {"a": 1}),
    (bool, "true", True),
    (date, '"2024-05-01"', date(2024, 5, 1)),
    (OBJECT, '{"n": 1}', {"n": 1}),
    (json.dumps(OBJECT), '{"n": 1}', {"n": 1}),
]


@pytest.mark.parametrize(("schema", "text", "value"), TYPED)
def test_text_becomes_an_object_of_the_type(schema: Any, text: str, value: Any) -> None:
    made = json_schema_of(schema)
    Draft202012Validator.check_schema(made)
    assert made == json.loads(json.dumps(made))
    parsed = parse(schema, text)
    assert parsed == value
    assert type(parsed) is type(value)


def test_a_schema_is_given_on_as_it_is() -> None:
    assert json_schema_of(OBJECT) == json_schema_of(json.dumps(OBJECT)) == OBJECT
    assert json_schema_of(Place)["required"] == ["name"]
    assert json_schema_of(Place)["properties"]["height"]["minimum"] == 0


INVALID = [
    (Item, '{"name": "pen", "price": -1}', "price: Input should be greater than 0"),
    (Order, '{"items": [{"name": 1, "price": 1}]}', "items[0].name: Input should be a valid"),
    (Item, "pen, 2", "Invalid JSON: expected"),
    (Item, ITEM[:-1], "Invalid JSON: EOF"),
    (Color, "green", "Invalid JSON"),
    (Color, '"green"', "Input should be 'red' or 'blue'"),
    (OBJECT, '{"n": "x"}', "n: 'x' is not of type 'integer'"),
    (OBJECT, "{}", "'n' is a required property"),
    (OBJECT, '{"n": 1} and more', "not JSON: trailing characters"),
    (OBJECT, '{"n": NaN}', "not JSON"),
    (OBJECT, "[" * 100_000, "not JSON: recursion limit"),
    ({"anyOf": [{"type": "null"}, OBJECT]}, '{"n": 0.5}', "n: 0.5 is not of type 'integer'"),
    ({"$ref": "#"}, "1", "refers to itself without end"),
]


@pytest.mark.parametrize(("schema", "text", "message"), INVALID)
def test_an_invalid_text_says_where_and_why(schema: Any, text: str, message: str) -> None:
    with pytest.raises(InvalidOutput) as caught:
        parse(schema, text)
    assert message in str(caught.value)
    assert caught.value.text == text


@pytest.mark.parametrize("schema", [list[int], {"items": {"type": "integer"}}])
def test_feedback_stays_short(schema: Any) -> None:
    text = json.dumps(["long" * 1000, "b", "c", "d", "e"])
    with pytest.raises(
        InvalidOutput, match=r"\[0\]: .*; \[1\]: .*; \[2\]: .*; and 2 more$"
    ) as caught:
        parse(schema, text)
    assert len(str(caught.value)) < 3 * 250


UNUSABLE = [
    (object(), TypeError, "no JSON schema can be made of <object"),
    (typing.Callable[[], int], TypeError, "Callable"),
    (list["Nowhere"], TypeError, "not fully defined"),  # type: ignore[name-defined]  # noqa: F821
    (Annotated[str, Field(pattern="(")], TypeError, "unclosed group"),
    ("not json", ValueError, "json_schema is 'not json', not JSON"),
    ("[]", ValueError, "a JSON schema is an object"),
    ({"properties": {"a": {"type": "whole"}}}, ValueError, "properties.a.type: 'whole' is not"),
]


@pytest.mark.parametrize(("schema", "error", "message"), UNUSABLE)
def test_what_has_no_schema_is_refused(schema: Any, error: type, message: str) -> None:
    with pytest.raises(error) as caught:
        json_schema_of(schema)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("place", ["file", "#/$defs/item"])
def test_a_reference_is_looked_up_in_the_schema_alone(place: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "item.json"
    elsewhere.write_text(json.dumps(OBJECT), encoding="utf-8")
    ref = elsewhere.as_uri() if place == "file" else place
    with pytest.raises(ValueError, match=r"which is not in it; put it under \$defs") as caught:
        parse({"$ref": ref}, '{"n": 1}')
    assert not isinstance(caught.value, InvalidOutput)
    assert parse({"$ref": "#/$defs/item", "$defs": {"item": OBJECT}}, '{"n": 1}') == {"n": 1}


# Growing text

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(-1e9, 1e9) | st.text()
DOCUMENTS = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@pytest.mark.slow
@settings(max_examples=50)
@given(DOCUMENTS, st.booleans())
def test_no_beginning_of_a_document_raises(document: Any, ascii: bool) -> None:
    text = json.dumps(document, ensure_ascii=ascii)
    schemas: list[Any] = [{}, Order, list[Item], dict[int, Color], Names, Place, int | str]
    for schema in schemas:
        for end in range(len(text)):
            parse_partial(schema, text[:end])
    assert parse_partial({}, text) == document


ITEMS = st.lists(st.builds(Item, price=st.floats(0.5, 9), type=st.text(max_size=4)), max_size=2)
ORDERS = st.recursive(
    st.builds(Order, ITEMS, notes=st.lists(st.text(), max_size=2)),
    lambda inner: st.builds(Order, st.just([PEN]), parent=inner),
    max_leaves=3,
)


@pytest.mark.slow
@settings(max_examples=20)
@given(ORDERS)
def test_an_object_that_is_whole_equals_the_parsed_one(order: Order) -> None:
    text = TypeAdapter(Order).dump_json(order, by_alias=True).decode()
    for end in range(1, len(text)):
        assert isinstance(parse_partial(Order, text[:end]), Order)
    assert parse_partial(Order, text) == parse(Order, text) == order


def test_an_object_grows_field_by_field() -> None:
    text = '{"items": [{"name": "pen", "price": 2, "type": "to'
    assert parse_partial(Order, "") is None
    assert parse_partial(Order, "{") == Order(None)  # type: ignore[arg-type]
    (item,) = parse_partial(Order, text).items
    assert isinstance(item, Item)
    assert (item.name, item.price, item.kind, item.tags) == ("pen", 2, "to", [])
    (item,) = parse_partial(Order, text[:25]).items
    assert (item.name, item.price) == ("pen", None)
    assert parse_partial(OBJECT, '{"n": 1, "m": "x') == {"n": 1, "m": "x"}


@pytest.mark.parametrize(
    ("schema", "text", "value"),
    [
        (Color, '"re', None),
        (date, '"2024-05', None),
        (list[Color], '["red", "bl', [Color.RED, None]),
        (list[Annotated[str, Field(min_length=9)]], '["sho', ["sho"]),
        (Names, '{"1": ["a", "b', Names.model_construct({1: ["a", "b"]})),
        (Place, '{"name": "K', {"name": "K"}),
        (Item | Point, '{"name": "pen"', None),
    ],
)
def test_what_cannot_be_shown_in_part_is_none(schema: Any, text: str, value: Any) -> None:
    assert parse_partial(schema, text) == value
