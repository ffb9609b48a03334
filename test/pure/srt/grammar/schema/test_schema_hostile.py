"""Schemas made to be slow, deep or large end in a clear error, or compile, with bounded work."""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Any

import numpy as np
import pytest
from helpers.json_acceptor import BYTES, accepts, accepts_text
from helpers.vocabularies import embedded, tekken
from sglang.ir.constraint import Constraint
from sglang.srt.grammar.compile_plan import make_plan
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.guidance import GuidanceGrammar, check, grammar_of
from sglang.srt.grammar.guidance.guidance_tokenizer import TOKENIZERS
from sglang.srt.grammar.guidance.work_limits import SCHEMA, limits, many_tokens
from sglang.srt.grammar.schema import normal_form
from sglang.srt.grammar.schema.objects import MOST_OPTIONAL
from sglang.srt.grammar.schema.string_patterns import pattern_of


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
    (json.dumps({"type": "object", "properties": {f"p{i}": {} for i in range(801)}}),
     "at /properties: a value's objects have 801 properties that are not required; at most 800"),
    (json.dumps({"anyOf": [{"type": "object", "required": ["kind"], "properties": {
        "kind": {"const": kind}, **{f"p{i}": {} for i in range(401)}}} for kind in "ab"]}),
     "objects have 802 properties that are not required; at most 800"),
    (json.dumps({"type": "string", "minLength": 10**9}), "more than"),
    (json.dumps({"type": "string", "pattern": "^(((.{1,30}){1,30}){1,30}){1,30}(?=a)$"}), "regex"),
    (json.dumps({"type": "integer", "minimum": 10**400}), "more than 300 digits"),
    ('{"type":"integer","minimum":1' + "0" * 5000 + "}", "not JSON|digits"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("text", "message"), REFUSED, ids=range(len(REFUSED)))
def test_refused(text: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message) as caught:
        check(grammar_of(Constraint("json_schema", text), ""))
    assert len(str(caught.value)) < 1000


TAKEN: list[tuple[Any, Any, Any]] = [
    ({"enum": [f"v{i}" for i in range(10_000)]}, "v9999", "v10000"),
    ({"enum": list(range(10_000))}, 9999, 10_000),
    ({"oneOf": some(300, '{"const":%}')}, 299, 300),
    ({"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(500)}},
     {"p499": None}, {"p0": 1}),
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


@pytest.mark.slow
@pytest.mark.parametrize(("schema", "right", "wrong"), TAKEN, ids=range(len(TAKEN)))
def test_taken(schema: Any, right: Any, wrong: Any) -> None:
    text = grammar_of(Constraint("json_schema", json.dumps(schema)), "")
    check(text)
    matcher = GuidanceGrammar(text, BYTES, step=SCHEMA).matcher()
    assert accepts(matcher, right)
    assert not accepts(matcher, wrong)


VALUES = {
    "integer": ({"type": "integer"}, 1),
    "string": ({"type": "string"}, "a"),
    "array": ({"type": "array", "items": {"type": "string"}}, ["a", "b"]),
    "object": ({"type": "object", "properties": {"x": {"type": "number"}}}, {"x": 1.5}),
}


@pytest.mark.slow
@pytest.mark.parametrize("space", ["", "[ ]?", "[ \n\t]{0,8}"])
@pytest.mark.parametrize("kind", VALUES)
def test_all_optional_properties_keep_to_the_limits_of_a_step(kind: str, space: str) -> None:
    """Many tokens end a value and go on with the next name: each makes the parser's row anew."""
    value, instance = VALUES[kind]
    schema = {"type": "object", "properties": {f"p{i}": value for i in range(MOST_OPTIONAL)}}
    text = grammar_of(Constraint("json_schema", json.dumps(schema)), space)
    check(text, SCHEMA)
    matcher = GuidanceGrammar(text, many_tokens(), step=SCHEMA).matcher()
    written = {f"p{i}": instance for i in (0, 1, 300, MOST_OPTIONAL - 1)}
    for byte in json.dumps(written, separators=None if space else (",", ":")).encode():
        mask = matcher.mask()
        assert mask[byte >> 3] & 1 << (byte & 7)
        assert matcher.advance(byte)
    assert matcher.accepting


def arrays(count: int) -> dict[str, Any]:
    """Nested arrays, each of at least i items for each i: they begin alike."""
    return {"anyOf": [{"type": "array", "items": {"$ref": "#"}, "minItems": i}
                      for i in range(count)]}  # fmt: skip


def objects(count: int) -> dict[str, Any]:
    return {"anyOf": [
        {"type": "object", "additionalProperties": False,
         "properties": {"a": {"$ref": "#"}, f"k{i}": {"type": "null"}}} for i in range(count)
    ]}  # fmt: skip


def expressions(count: int) -> dict[str, Any]:
    """A schema of a syntax tree: the first property tells the alternatives apart."""
    nodes: list[Any] = [
        {"type": "object", "required": ["op", "left", "right"], "additionalProperties": False,
         "properties": {"op": {"const": f"op{i}"}, "left": {"$ref": "#/$defs/e"},
                        "right": {"$ref": "#/$defs/e"}}}
        for i in range(count)
    ]  # fmt: skip
    return {"$defs": {"e": {"anyOf": [*nodes, {"type": "number"}]}}, "$ref": "#/$defs/e"}


@pytest.mark.slow
@pytest.mark.parametrize("make", [arrays, objects])
def test_nested_alternatives_that_begin_alike_are_refused(make: Any) -> None:
    """Masks of nested alternatives compute rows of cubes of their number, before any limit counts
    them. Structural tags that contain them are refused too."""
    tag = {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": make(40)}}
    for kind, text in (("json_schema", make(40)), ("structural_tag", tag)):
        error = make_plan(Constraint(kind, json.dumps(text)), "auto", "").error
        assert re.match(rf"{kind}: (its parser keeps|a step takes) more than \d+ ", error), error
    assert make_plan(Constraint("json_schema", json.dumps(make(8))), "auto", "").error == ""


@pytest.mark.slow
def test_nested_alternatives_that_differ_early_are_taken() -> None:
    assert make_plan(Constraint("json_schema", json.dumps(expressions(30))), "auto", "").error == ""


def items_of_masks(text: str, path: str) -> list[int]:
    """Parser items of the masks along a text, with a large vocabulary."""
    from llguidance import LLInterpreter

    tokenizer, _ = TOKENIZERS.get(tekken())
    walker = LLInterpreter(tokenizer, text, enable_backtrack=False, enable_ff_tokens=False,
                           log_level=0, limits=limits(SCHEMA))  # fmt: skip
    walker.start_without_prompt()
    found = []
    for token in tekken().encode([path])[0]:
        _, report = walker.compute_mask()
        progress = json.loads(report)["progress"]
        found += [part["stats"]["all_items"] for part in progress if "stats" in part]
        try:
            walker.commit_token(token)
        except ValueError:  # a limit was reached
            break
    return found


@pytest.mark.slow
@pytest.mark.parametrize("count", [4, 8, 12, 16, 20, 24, 40, 60])
def test_a_mask_of_a_schema_has_few_items(count: int) -> None:
    """Items of a mask: at most those that the limit counts, and one more row, if the schema is
    accepted."""
    for make, path in ((arrays, "[ [ [ [ 1"), (objects, '{"a":{"a":{"a":{}}}}')):
        plan = make_plan(Constraint("json_schema", json.dumps(make(count))), "auto", "")
        assert plan.error or count < 40
        if not plan.error:
            found = items_of_masks(plan.text, path)
            assert found
            assert max(found) <= SCHEMA.items + 4 * SCHEMA.row


def test_work_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    schema = json.dumps({"oneOf": some(30, '{"type":"string","minLength":%,"maxLength":%}')})
    grammar_of(Constraint("json_schema", schema), "")
    monkeypatch.setattr(normal_form, "MOST_WORK", 100)
    with pytest.raises(GrammarError, match="too much work"):
        grammar_of(Constraint("json_schema", schema), "")


# -- patterns that take too much work ------------------------------------------------------------


def random_pattern(dice: random.Random, depth: int) -> str:
    kind = dice.choice(["one", "one", "both", "either", "repeat"]) if depth else "one"
    if kind == "one":
        return dice.choice(["a", "b", "[ab]", "c", "."])
    inner = random_pattern(dice, depth - 1)
    if kind == "both":
        return inner + random_pattern(dice, depth - 1)
    if kind == "either":
        return f"(?:{inner}|{dice.choice([random_pattern(dice, depth - 1), ''])})"
    low = dice.choice([0, 1, 2])
    return f"(?:{inner})" + dice.choice(["*", "+", "?", f"{{{low},{low + dice.randint(0, 2)}}}"])


@pytest.mark.slow
def test_a_repeat_at_an_open_edge_is_its_least_number() -> None:
    """The same strings are found; counting further than that takes no states."""
    assert pattern_of("[a-z]{1,255}").expression == pattern_of("[a-z]").expression
    assert pattern_of("[a-z]{3,255}x").expression == pattern_of("[a-z]{3}x").expression
    assert pattern_of("^[a-z]{1,255}$").expression != pattern_of("^[a-z]$").expression
    texts = ["".join(text) for n in range(6) for text in itertools.product("abc", repeat=n)]
    for n in range(150):
        dice = random.Random(f"edge {n}")
        source = random_pattern(dice, 3)
        source = dice.choice(["", "", "^"]) + source + dice.choice(["", "", "$"])
        grammar = GuidanceGrammar(f"start: T\nT: {pattern_of(source).expression}", BYTES)
        for text in dice.sample(texts, 40):
            found = re.search(source, text) is not None
            assert accepts_text(grammar.matcher(), f'"{text}"') is found, (source, text)


WALKED = [
    {"patternProperties": {"[a-z]{1,255}": {"type": "integer"}}},
    {"patternProperties": {"^[a-z]{1,255}$": {"type": "integer"}, "[0-9]{2,99}": {}}},
    {"properties": {"a": {"type": "string", "not": {"pattern": "[a-z]{2,200}[0-9]{1,100}"}}}},
]


@pytest.mark.slow
@pytest.mark.parametrize("schema", WALKED, ids=range(len(WALKED)))
def test_an_accepted_schema_can_be_generated(schema: dict[str, Any]) -> None:
    """25 generations with tokens of several bytes, none of which meets a limit."""
    known = embedded()
    plan = make_plan(
        Constraint("json_schema", json.dumps({"type": "object", **schema})), "auto", ""
    )
    assert not plan.error
    grammar = GuidanceGrammar(plan.text, known)
    for n in range(25):
        dice, matcher = random.Random(f"walk {n}"), grammar.matcher()
        for _ in range(60):
            bits = np.unpackbits(np.frombuffer(matcher.mask(), np.uint8), bitorder="little")
            going = [token for token in np.flatnonzero(bits).tolist() if token not in known.eos]
            if not going:
                break
            assert matcher.advance(dice.choice(going))


HARD = [
    ({"patternProperties": {"a.{1,30}b": {}}}, "/"),
    ({"properties": {"x": {"items": {"type": "string", "not": {"pattern": "a.{5,90}b"}}}}},
     "/properties/x/items"),
    ({"$defs": {"n": {"type": "object", "patternProperties": {"e.{1,99}t": {}}}},
      "properties": {"a": {"$ref": "#/$defs/n"}}}, "/properties/a"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "at"), HARD)
def test_a_schema_that_cannot_be_walked_is_refused(schema: dict[str, Any], at: str) -> None:
    plan = make_plan(
        Constraint("json_schema", json.dumps({"type": "object", **schema})), "auto", ""
    )
    assert plan.error.startswith(f"json_schema at {at}: its patterns")
    assert "anchor the patterns with ^ and $" in plan.error
