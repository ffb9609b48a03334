"""JSON schemas are enforced in full or refused: never is an invalid value accepted."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from helpers.json_acceptor import BYTES, accepts, accepts_text
from helpers.paths import TESTS
from jsonschema import Draft4Validator, Draft202012Validator
from sglang.ir.constraint import Constraint
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.guidance import GuidanceGrammar, check, grammar_of
from sglang.srt.grammar.schema import Refusal, compile_schema

SUITE = TESTS / "data" / "json-schema-test-suite" / "draft2020-12"
FILES = sorted(path.stem for path in SUITE.glob("*.json"))


def compiled(schema: Any) -> GuidanceGrammar:
    text = grammar_of(Constraint("json_schema", json.dumps(schema)), "")
    check(text)
    return GuidanceGrammar(text, BYTES)


def takes(schema: Any, value: Any) -> bool:
    return accepts(compiled(schema).matcher(), value)


# Groups of the suite that are refused, by file; in all others every group is enforced.
REFUSED = {
    "allOf": 2, "anyOf": 1, "boolean_schema": 1, "defs": 1, "dependentSchemas": 1,
    "dynamicRef": 19, "format": 1, "maxContains": 4, "minContains": 5, "multipleOf": 4, "not": 3,
    "oneOf": 3, "ref": 2, "refRemote": 15, "unevaluatedItems": 15, "unevaluatedProperties": 22,
    "uniqueItems": 3,
}  # fmt: skip
# Valid values that no spelling of the grammar has: 1.0 for the integer 1, and formats, which the
# suite does not assert.
UNWRITTEN = {"const": 4, "enum": 4, "format": 18, "type": 1, "vocabulary": 1}


@cache
def outcome(name: str) -> tuple[list[str], list[str], list[str]]:
    """Groups refused, valid values not accepted, invalid values accepted."""
    refused: list[str] = []
    missed: list[str] = []
    wrong: list[str] = []
    for group in json.loads((SUITE / f"{name}.json").read_text()):
        try:
            grammar = compiled(group["schema"])
        except GrammarError:
            refused.append(group["description"])
            continue
        for test in group["tests"]:
            found = accepts(grammar.matcher(), test["data"])
            if found is not test["valid"]:
                (wrong if found else missed).append(
                    f"{group['description']}: {test['description']}"
                )
    return refused, missed, wrong


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_suite(name: str) -> None:
    refused, missed, wrong = outcome(name)
    assert wrong == []
    assert len(refused) == REFUSED.get(name, 0), refused
    assert len(missed) == UNWRITTEN.get(name, 0), missed


UNSUPPORTED: list[tuple[Any, str, str]] = [
    ({"properties": {"a": {"$dynamicRef": "#x"}}}, "/properties/a/$dynamicRef", "use $ref"),
    ({"$recursiveRef": "#"}, "/$recursiveRef", "use $ref"),
    ({"items": {"uniqueItems": True}}, "/items/uniqueItems", "enum of scalars"),
    ({"contains": {}, "minContains": 2}, "/minContains", "prefixItems"),
    ({"contains": {}, "maxContains": 2}, "/maxContains", "prefixItems"),
    ({"$ref": "#/$defs/a", "$defs": {"a": {}}, "unevaluatedProperties": False},
     "/unevaluatedProperties", "additionalProperties"),
    ({"allOf": [{}], "unevaluatedItems": False}, "/unevaluatedItems", "items beside prefixItems"),
    ({"properties": {"a/b": {"$ref": "http://x.y/z"}}}, "/properties/a~1b/$ref", "copy what it"),
    ({"$ref": "#/$defs/none"}, "/$ref", "names nothing"),
    ({"$ref": "#none"}, "/$ref", "names nothing"),
    ({"$ref": 3}, "/$ref", "must be a string"),
    ({"type": "strnig"}, "/type", "is not a type"),
    ({"type": ["string", "any"]}, "/type", "is not a type"),
    ({"items": 3}, "/items", "must be an object or true or false"),
    (3, "", "must be an object or true or false"),
    (False, "", "allows no value"),
    ({"enum": []}, "", "allows no value"),
    ({"enum": "a"}, "/enum", "must be a list"),
    ({"anyOf": []}, "/anyOf", "not empty"),
    ({"type": "string", "minLength": 3, "maxLength": 2}, "", "allows no value"),
    ({"type": "string", "minLength": -1}, "/minLength", "not a count"),
    ({"type": "string", "minLength": "1"}, "/minLength", "not a count"),
    ({"type": "integer", "minimum": "1"}, "/minimum", "not a number"),
    ({"type": "integer", "minimum": 0.1, "maximum": 0.9}, "", "allows no value"),
    ({"type": "number", "multipleOf": 0.01}, "/multipleOf", "count in units"),
    ({"type": "number", "multipleOf": 0}, "/multipleOf", "above 0"),
    ({"type": "string", "format": "regex"}, "/format", "use a pattern"),
    ({"type": "string", "format": "datetime"}, "/format", "'date-time'"),
    ({"type": "string", "format": "emial"}, "/format", "'email'"),
    ({"type": "string", "pattern": "(a"}, "/pattern", ""),
    ({"type": "string", "pattern": "(a)\\1"}, "/pattern", ""),
    ({"type": "string", "pattern": "^a$", "minLength": 2}, "", "allows no value"),
    ({"required": True}, "/required", "draft 3"),
    ({"type": "object", "required": ["a"], "properties": {"a": False}}, "", "allows no value"),
    ({"type": "object", "minProperties": 2}, "/minProperties", "written twice"),
    ({"divisibleBy": 2}, "/divisibleBy", "multipleOf"),
    ({"oneOf": [{"type": "array", "uniqueItems": True}, {"type": "array", "items": {}}]},
     "/oneOf", "make them exclusive"),
    ({"not": {"propertyNames": {"pattern": "a"}}}, "/not/propertyNames", "inside not"),
    ({"$ref": "#"}, "", "refers to itself"),
    ({"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {}]}}, "$ref": "#/$defs/a"}, "/$defs/a",
     "refers to itself"),
    ({"properties": {"a": {"$ref": "#"}}, "required": ["a"], "type": "object"}, "",
     "allows no value"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "pointer", "message"), UNSUPPORTED, ids=range(len(UNSUPPORTED)))
def test_what_is_not_enforced_is_refused_with_its_pointer(
    schema: Any, pointer: str, message: str
) -> None:
    with pytest.raises(Refusal) as caught:
        compile_schema(schema)
    assert caught.value.pointer == pointer
    assert message in caught.value.reason
    assert str(caught.value).startswith(f"json_schema at {pointer or '/'}: ")


ENFORCED: list[tuple[Any, list[Any], list[Any]]] = [
    # Draft 4 and older spellings.
    ({"type": "integer", "minimum": 2, "exclusiveMinimum": True}, [3], [2, 1]),
    ({"type": "integer", "maximum": 2, "exclusiveMaximum": False}, [2], [3]),
    ({"items": [{"type": "null"}], "additionalItems": {"type": "boolean"}, "type": "array"},
     [[], [None], [None, True]], [[True], [None, 1]]),
    ({"dependencies": {"a": ["b"], "c": {"required": ["d"]}}}, [{"b": 1}, {"a": 1, "b": 1}],
     [{"a": 1}, {"c": 1}]),
    ({"definitions": {"x~/y": {"type": "null"}}, "$ref": "#/definitions/x~0~1y"}, [None], [1]),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "$defs": {"a": {}},
      "$ref": "#/$defs/a", "type": "string"}, [1], []),
    # A value must satisfy all that is said of it.
    ({"type": "string", "enum": ["a", 1, None]}, ["a"], [1, None]),
    ({"enum": ["a", "abc", 5, 50], "minLength": 2, "maximum": 10}, ["abc", 5], ["a", 50]),
    ({"const": 3, "type": "integer"}, [3], [4]),
    ({"type": ["integer", "null"], "minimum": 3, "maxLength": 1}, [None, 3], [2, "a"]),
    ({"type": "integer", "format": "date", "pattern": "x", "items": False}, [1], ["x"]),
    ({"allOf": [{"pattern": "^a"}, {"pattern": "b$"}, {"maxLength": 3}], "type": "string"},
     ["ab", "axb"], ["a", "b", "axxb"]),
    ({"allOf": [{"properties": {"a": {"minimum": 3}}},
                {"properties": {"a": {"type": "integer", "maximum": 5}}}]},
     [{"a": 4}, {}], [{"a": 2}, {"a": 6}, {"a": 3.5}]),
    ({"allOf": [{"properties": {"a": {}}, "additionalProperties": {"type": "null"}},
                {"properties": {"b": {}}, "required": ["b"]}]}, [{"b": None}], [{"b": 1}]),
    # not, if, oneOf.
    ({"type": "string", "not": {"enum": ["a", "b"]}}, ["", "ab", "c"], ["a", "b"]),
    ({"type": "string", "not": {"pattern": "^[a-z]+$"}}, ["A", ""], ["a"]),
    ({"type": "integer", "not": {"const": 5}}, [4, 6, -5], [5]),
    ({"not": {"type": ["integer", "string"]}}, [None, 1.5, []], [1, "a"]),
    ({"not": {"type": "number"}}, [None], [1, 1.5]),
    ({"type": "object", "not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}]),
    ({"not": {"items": {"type": "integer"}}, "type": "array"}, [["a"], [1, "a"]], [[], [1]]),
    ({"not": {"additionalProperties": {"type": "null"}}, "type": "object"},
     [{"a": 1}, {"b": None, "a": 1}], [{}, {"a": None}]),
    ({"if": {"properties": {"k": {"const": "a"}}, "required": ["k"]},
      "then": {"required": ["x"]}, "else": {"required": ["y"]}, "type": "object"},
     [{"k": "a", "x": 1}, {"k": "b", "y": 1}, {"y": 1}], [{"k": "a", "y": 1}, {"k": "b", "x": 1}]),
    ({"oneOf": [{"type": "integer"}, {"minimum": 3, "type": "number"}]}, [2, 3.5], [3, 2.5]),
    ({"oneOf": [{"required": ["a"]}, {"required": ["b"]}], "type": "object"},
     [{"a": 1}, {"b": 1}], [{}, {"a": 1, "b": 1}]),
    ({"oneOf": [{"type": "string"}, {"type": "string", "format": "date"}]}, ["x"], ["2024-01-01"]),
    # Names.
    ({"propertyNames": {"pattern": "^[a-z]+$", "maxLength": 2}, "type": "object"},
     [{}, {"ab": 1}], [{"A": 1}, {"abc": 1}]),
    ({"propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "null"},
      "type": "object"}, [{"a": None}, {"b": None, "a": None}], [{"c": None}, {"a": 1}]),
    ({"patternProperties": {"^a": {"type": "integer"}, "b$": {"minimum": 3}}, "type": "object"},
     [{"a": 1}, {"ab": 3}, {"b": 4}, {"x": "y"}], [{"a": "x"}, {"ab": 2}, {"b": 2}]),
    ({"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
     [{"a": 1, "b": "x"}], [{"a": "x"}, {"b": 1}]),
    ({"minProperties": 1, "maxProperties": 2, "properties": {"a": {}, "b": {}, "c": {}},
      "additionalProperties": False}, [{"a": 1}, {"a": 1, "c": 2}], [{}, {"a": 1, "b": 2, "c": 3}]),
    ({"type": "object", "minProperties": 1}, [{"a": 1}], [{}]),
    ({"type": "object", "maxProperties": 1}, [{}, {"a": 1}], [{"a": 1, "b": 2}]),
    # Arrays.
    ({"type": "array", "uniqueItems": True, "items": {"enum": [1, "a", None]}, "minItems": 1},
     [[1], ["a", 1], [None, 1, "a"]], [[], [1, 1], ["a", None, "a"]]),
    ({"type": "array", "uniqueItems": True, "items": {"type": "boolean"}},
     [[], [True, False]], [[True, True]]),
    ({"type": "array", "uniqueItems": True, "maxItems": 1}, [[], [1]], [[1, 2]]),
    ({"type": "array", "contains": {"type": "null"}}, [[None], [1, None, 2]], [[], [1]]),
    ({"type": "array", "contains": {"const": 1}, "maxItems": 3, "minItems": 2},
     [[1, 2], [3, 4, 1]], [[1], [2, 3], [1, 2, 3, 4]]),
    ({"prefixItems": [{"type": "integer"}], "items": {"type": "string"}, "minItems": 2,
      "type": "array"}, [[1, "a"], [1, "a", "b"]], [[1], ["a", "a"], [1, 2]]),
    # Text.
    ({"const": {"a": [1, {"b": None}], "c": "\n\"\\\u0001é🙂"}},
     [{"a": [1, {"b": None}], "c": "\n\"\\\u0001é🙂"}], [{"a": [1, {"b": None}], "c": ""}, {}]),
    ({"type": "string", "minLength": 2, "maxLength": 2}, ["🙂é", "\n\t"], ["🙂", "abc"]),
    ({"type": "string", "pattern": "^\\W$"}, ["-", " "], ["a", "é", "٣"]),
    ({"type": "string", "pattern": "^\\d+$"}, ["12"], ["٣", "a"]),
    ({"type": "string", "pattern": "^(?!ab)[a-c]+$"}, ["ba", "ac"], ["ab", "abc"]),
    ({"type": "string", "pattern": "b|^a$|c"}, ["xbx", "a", "c"], ["ax", ""]),
    ({"type": "string", "pattern": ".\""}, ["a\""], ["\""]),
    ({"type": "string", "format": "date"}, ["2024-02-29", "0001-01-01"],
     ["2023-02-29", "1900-02-29", "2024-13-01", "0000-01-01"]),
    ({"type": "string", "format": "ipv4"}, ["1.2.3.255"], ["1.2.3.256", "01.2.3.4", "1.2.3"]),
    ({"type": "string", "format": "my-own"}, ["anything"], [1]),
    # Numbers.
    ({"type": "integer", "multipleOf": 7, "minimum": 10}, [14, 700], [7, 15]),
    ({"type": "integer", "multipleOf": 25}, [0, 75, -100], [5, 10]),
    ({"type": "integer", "minimum": 9007199254740993, "maximum": 9007199254740993},
     [9007199254740993], [9007199254740992, 9007199254740994]),
    ({"exclusiveMinimum": 1, "maximum": 1.5, "type": "number"}, [1.5, 1.25], [1, 1.0, 1.75]),
    # $id and anchors.
    ({"$id": "http://x/y/root.json", "$defs": {"a": {"$anchor": "here", "type": "null"}},
      "properties": {"p": {"$ref": "root.json#here"}, "q": {"$ref": "http://x/y/root.json#/$defs/a"}}},
     [{"p": None, "q": None}], [{"p": 1}, {"q": 1}]),
    ({"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False},
     [{}, {"next": {"next": {}}}], [{"next": 1}, {"next": {"x": 1}}]),
    (True, [1, "a", {"a": []}, None], []),
    ({"title": "t", "default": 1, "examples": [], "$comment": "", "deprecated": True,
      "readOnly": True, "x-more": {"not": 3}}, [1, {}], []),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "right", "wrong"), ENFORCED, ids=range(len(ENFORCED)))
def test_what_is_enforced(schema: Any, right: list[Any], wrong: list[Any]) -> None:
    matcher = compiled(schema).matcher()
    assert [value for value in right if not accepts(matcher, value)] == []
    assert [value for value in wrong if accepts(matcher, value)] == []


@pytest.mark.parametrize(("schema", "right", "wrong"), ENFORCED, ids=range(len(ENFORCED)))
def test_the_table_is_what_jsonschema_says(schema: Any, right: list[Any], wrong: list[Any]) -> None:
    text = json.dumps(schema)
    if "dependencies" in text or "format" in text or '"items": [' in text:
        return  # keywords of older drafts, and formats, which it does not assert
    old = "exclusiveM" in text and ("true" in text or "false" in text)
    validator = (Draft4Validator if old else Draft202012Validator)(schema)
    if "draft-07" in text or "\\W" in text or "\\d" in text:
        return  # a draft, or a reading of patterns, of its own
    assert [value for value in right if not validator.is_valid(value)] == []
    assert [value for value in wrong if validator.is_valid(value)] == []


def test_a_name_has_one_spelling() -> None:
    """Else a property could be given again, past its schema, with an escape in its name."""
    grammar = compiled({"properties": {"a": {"type": "integer"}}})
    assert accepts_text(grammar.matcher(), '{"a":1,"b":"x"}')
    assert not accepts_text(grammar.matcher(), '{"a":1,"\\u0061":"x"}')
    assert not accepts_text(grammar.matcher(), '{"a":1,"a":"x"}')
    assert not accepts_text(grammar.matcher(), '{"a":"x"}')


ORDERS = [
    ({"required": ["b"], "properties": {"a": {}}}, "ab"),
    ({"allOf": [{"required": ["b"]}, {"properties": {"a": {}, "b": {}}}]}, "ab"),
    ({"anyOf": [{"required": ["b"]}], "properties": {"a": {}, "b": {}}}, "ab"),
    ({"allOf": [{"properties": {"b": {}}}], "properties": {"a": {}}}, "ba"),
    ({"properties": {"b": {}}, "allOf": [{"properties": {"a": {}}}]}, "ba"),
    ({"properties": {"b": {}}, "$ref": "#/$defs/a", "$defs": {"a": {"properties": {"a": {}}}}},
     "ba"),
    ({"additionalProperties": {}, "oneOf": [{"properties": {"b": {}}}], "properties": {"a": {}}},
     "ba"),
    ({"if": {"properties": {"b": {}}}, "then": {}, "properties": {"a": {}, "b": {}}}, "ab"),
    ({"dependentRequired": {"b": ["a"]}, "properties": {"a": {}, "b": {}}}, "ab"),
    ({"properties": {"a": {}, "b": {}}, "const": {"b": 1, "a": 1}}, "ba"),
    ({"allOf": [{"properties": {"c": {}}, "required": ["a"]}, {"required": ["b"]}],
      "properties": {"d": {}}}, "cdab"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "order"), ORDERS)
def test_properties_are_written_as_the_schema_mentions_them(
    schema: dict[str, Any], order: str
) -> None:
    """Adjacent keywords that mention names set the order of properties as written; names that only
    ``required`` mentions come last."""
    grammar = compiled({"type": "object", **schema})
    for one in itertools.permutations(order):
        text = "{" + ",".join(f'"{name}":1' for name in one) + "}"
        assert accepts_text(grammar.matcher(), text) is ("".join(one) == order), one


def nested(dice: random.Random, names: Iterator[str], depth: int) -> tuple[dict[str, Any], str]:
    """A schema at random, and the names that it mentions in the order in which they stand in it."""
    schema: dict[str, Any] = {}
    order = ""
    for keyword in dice.sample(["properties", "allOf", "anyOf", "oneOf"], 3 if depth else 1):
        if keyword == "properties" or not depth:
            own = [next(names) for _ in range(dice.choice([1, 2]))]
            schema["properties"] = {name: {} for name in own}
            order += "".join(own)
        else:
            several = keyword == "allOf"
            parts = [
                nested(dice, names, depth - 1) for _ in range(1 + (several and dice.random() < 0.5))
            ]
            schema[keyword] = [part for part, _ in parts]
            order += "".join(text for _, text in parts)
    return schema, order


@pytest.mark.slow
def test_the_order_of_nested_schemas() -> None:
    for n in range(40):
        dice = random.Random(f"order {n}")
        names = iter(dice.sample("abcdefghijklmnopqrstuvwxyz", 26))
        schema, order = nested(dice, names, 2)
        late = [next(names), next(names)]
        grammar = compiled({"type": "object", "required": late, **schema})
        whole = "{" + ",".join(f'"{name}":1' for name in [*order, *late]) + "}"
        assert accepts_text(grammar.matcher(), whole), (schema, late)
        swapped = [*order, *late]
        at = dice.randrange(len(swapped) - 1)
        swapped[at], swapped[at + 1] = swapped[at + 1], swapped[at]
        text = "{" + ",".join(f'"{name}":1' for name in swapped) + "}"
        assert not accepts_text(grammar.matcher(), text), (schema, swapped)


def test_order_and_separators() -> None:
    schema = {"type": "object", "properties": {"b": {"type": "null"}, "a": {"type": "null"}},
              "required": ["c", "a"]}  # fmt: skip
    grammar = compiled(schema)
    assert accepts_text(grammar.matcher(), '{"b":null,"a":null,"c":1,"x":2}')
    assert not accepts_text(grammar.matcher(), '{"a":null,"b":null,"c":1}')
    assert not accepts_text(grammar.matcher(), '{"a": null,"c":1}')


def test_strings_are_utf8_and_their_escapes_the_shortest() -> None:
    grammar = compiled({"type": "string"})
    for text in ('"é🙂"', '"\\n\\"\\\\"', '"\\u001f"', '"\x7f"'):
        assert accepts_text(grammar.matcher(), text)
        json.loads(text)
    for text in ('"\n"', '"\\x"', '"\\u00e9"', '"\\ud800"', '"\\u000a"', '"a'):
        assert not accepts_text(grammar.matcher(), text)
    matcher = grammar.matcher()
    assert matcher.advance(ord('"'))
    assert not matcher.advance(0xFF)


def test_the_json_object_of_response_format() -> None:
    grammar = compiled({"type": "object"})
    assert accepts_text(grammar.matcher(), '{"a":{"b":[1,-2.5e3,true,null,"x"]},"c":{}}')
    assert not accepts_text(grammar.matcher(), "[]")


def test_text_that_is_not_a_schema() -> None:
    for text in ("{", "NaN", '{"minimum":Infinity}', '{"const":"\\ud800"}', "[" * 100_000):
        with pytest.raises(GrammarError):
            grammar_of(Constraint("json_schema", text), "")


@pytest.mark.parametrize(
    ("pattern", "word"),
    [(r"^(?!admin$)[a-z]{5}$", "stayn"), (r"^(?=.*\d)[a-z0-9]{4}$", "st4n"), ("^[a-z]+$", "a")],
)
def test_the_end_of_a_pattern_is_the_end_of_the_text(pattern: str, word: str) -> None:
    """The pattern's end is that of ECMA-262; Python's ``$`` also matches before a final line
    feed."""
    schema = {"type": "string", "pattern": pattern}
    assert takes(schema, word)
    assert not takes(schema, word + "\n")


def test_versions_of_a_uuid() -> None:
    schema = {"type": "string", "format": "uuid4"}
    assert takes(schema, "f47ac10b-58cc-4372-a567-0e02b2c3d479")
    assert not takes(schema, "f47ac10b-58cc-1372-a567-0e02b2c3d479")


@pytest.mark.parametrize(
    ("keyword", "meant"),
    [("propertes", "properties"), ("maxLengh", "maxLength"), ("additionalproperties",
     "additionalProperties"), ("tsAdditionalProperties", ""), ("nullable", ""), ("x-type", "")],
)  # fmt: skip
def test_a_slip_of_a_keyword_is_refused(keyword: str, meant: str) -> None:
    schema = {"type": "object", keyword: True}
    if not meant:
        assert takes(schema, {})
        return
    with pytest.raises(GrammarError, match=f"did you mean '{meant}'"):
        compiled(schema)
