"""Schemas made to be slow, deep or large end in a clear error, or compile, with bounded work."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers.json_acceptor import BYTES, accepts
from srt.core.constraint import Constraint
from srt.grammar.base import GrammarError
from srt.grammar.guidance import GuidanceGrammar, check, grammar_of
from srt.grammar.schema import normal


def nested(word: str, times: int, inner: Any = True) -> Any:
    for _ in range(times):
        inner = {word: inner}
    return inner


def chain(times: int, **more: Any) -> dict[str, Any]:
    links = {
        f"d{i}": {"type": "object", "properties": {"a": {"$ref": f"#/$defs/d{i + 1}"}}, **more}
        for i in range(times)
    }
    return {"$defs": {**links, f"d{times}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def some(count: int, text: str) -> list[Any]:
    return [json.loads(text.replace("%", str(i))) for i in range(count)]


REFUSED: list[tuple[str, str]] = [
    (json.dumps(nested("not", 70)), "deeper than 64"),
    (json.dumps(nested("items", 70)), "deeper than 64"),
    ('{"not":' * 20_000 + "{}" + "}" * 20_000, "nested too deeply"),
    ("[" * 100_000, "nested too deeply"),
    (json.dumps({"enum": list(range(10_001))}), "at most 10000"),
    (json.dumps(chain(2000, required=["a"])), "nested too deeply"),
    (json.dumps({"$defs": {f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(3000)},
                 "$ref": "#/$defs/d0"}), "nested too deeply"),
    (json.dumps({"allOf": some(20, '{"anyOf":[{"required":["a%"]},{"required":["b%"]}]}')}),
     "more than 512 alternatives"),
    (json.dumps({"dependentRequired": {f"a{i}": [f"b{i}"] for i in range(40)}}),
     "more than 512 alternatives"),
    (json.dumps({"oneOf": some(200, '{"type":"string","pattern":"a{%}"}')}), "too much work"),
    (json.dumps({"patternProperties": {f"a{i}": {} for i in range(30)}}), "overlap"),
    (json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(300)},
                 "maxProperties": 200}), "too many rules"),
    (json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(1501)}}),
     "at /properties: an object has more than 1500 properties"),
    (json.dumps({"type": "string", "minLength": 10**9}), "more than"),
    (json.dumps({"type": "string", "pattern": "^(((.{1,30}){1,30}){1,30}){1,30}(?=a)$"}), "regex"),
    (json.dumps({"type": "integer", "minimum": 10**400}), "more than 300 digits"),
    ('{"type":"integer","minimum":1' + "0" * 5000 + "}", "not JSON|digits"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(text: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        check(grammar_of(Constraint("json_schema", text), ""))
    assert len(str(caught.value)) < 1000


TAKEN: list[tuple[Any, Any, Any]] = [
    ({"enum": [f"v{i}" for i in range(10_000)]}, "v9999", "v10000"),
    ({"enum": list(range(10_000))}, 9999, 10_000),
    ({"oneOf": some(300, '{"const":%}')}, 299, 300),
    ({"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(1500)}},
     {"p1499": None}, {"p0": 1}),
    (chain(1500), {"a": {"a": {}}}, {"a": 1}),
    ({"type": "string", "maxLength": 10**9}, "abc", 1),
    ({"type": "string", "minLength": 10**5}, "a" * 10**5, "a" * (10**5 - 1)),
    ({"type": "array", "maxItems": 10**9}, [1, 2], 1),
    ({"type": "array", "minItems": 50, "items": {"type": "null"}}, [None] * 50, [None] * 49),
    ({"type": "string", "pattern": "^(a+)+$"}, "a" * 50, "a" * 50 + "b"),
    ({"enum": ["a" * 40 + "b", "aa"], "pattern": "^(a+)+$"}, "aa", "a" * 40 + "b"),
    ({"$defs": {f"a{n}": {"type": "object", "properties": {
        "x": {"$ref": f"#/$defs/a{(n + 1) % 7}"}, "y": {"$ref": f"#/$defs/a{n * 2 % 7}"}}}
        for n in range(7)}, "allOf": [{"$ref": f"#/$defs/a{n}"} for n in range(7)]},
     {"x": {"y": {}}}, {"x": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "right", "wrong"), TAKEN, ids=range(len(TAKEN)))
def test_taken(schema: Any, right: Any, wrong: Any) -> None:
    text = grammar_of(Constraint("json_schema", json.dumps(schema)), "")
    check(text)
    matcher = GuidanceGrammar(text, BYTES).matcher()
    assert accepts(matcher, right)
    assert not accepts(matcher, wrong)


def test_work_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = json.dumps({"oneOf": some(30, '{"type":"string","minLength":%,"maxLength":%}')})
    grammar_of(Constraint("json_schema", schema), "")
    monkeypatch.setattr(normal, "MOST_WORK", 100)
    with pytest.raises(GrammarError, match="too much work"):
        grammar_of(Constraint("json_schema", schema), "")
