"""Schemas at random: what the grammar writes validates, and what does not validate is refused."""

from __future__ import annotations

import json
import os
import random
import re
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from helpers.corpora import schemas
from helpers.json_acceptor import BYTES, accepts, accepts_text
from helpers.vocabularies import embedded
from jsonschema import Draft202012Validator
from jsonschema.validators import validator_for
from sglang.ir.constraint import Constraint
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.guidance import GuidanceGrammar, grammar_of
from sglang.srt.grammar.schema import Refusal
from sglang.srt.grammar.schema.sample import sample
from sglang.srt.grammar.schema.string_formats import _PATTERNS
from sglang.srt.grammar.schema.string_patterns import pattern_of

CASES = int(os.environ.get("GRAMMAR_CASES", "150"))


def compiled(schema: Any, canonical: bool = False) -> GuidanceGrammar:
    return GuidanceGrammar(
        grammar_of(Constraint("json_schema", json.dumps(schema)), ""), BYTES, canonical
    )


# -- schemas -------------------------------------------------------------------------------------

SCALARS: list[Any] = [None, True, False, 0, 1, -2, 2.5, 7, "", "a", "ab", "b-1", "2024-02-29"]
VALUES: list[Any] = [*SCALARS, [], [1], ["a", None], [1, 2, 3], {}, {"a": 1}, {"a": "x", "b": None},
                     {"b": 2}, {"c": [1]}, {"a": {"a": 1}}, {"a": -5, "ab": 0.5}]  # fmt: skip


def draw(dice: random.Random, depth: int) -> Any:
    """A schema of a few keywords, some of them beside the point."""
    if depth == 0 and dice.random() < 0.3:
        return dice.choice([True, {}, False, {"type": "null"}])
    schema: dict[str, Any] = {}
    for _ in range(dice.choice([1, 1, 2, 2, 3])):
        name = dice.choice(list(DRAWN) if depth else PLAIN)
        schema.update({name: DRAWN[name](dice, depth - 1)})
    if dice.random() < 0.5:
        kinds = ["null", "boolean", "integer", "number", "string", "array", "object"]
        schema["type"] = dice.choice([*kinds, [dice.choice(kinds), dice.choice(kinds)]])
    return schema


def several(dice: random.Random, depth: int) -> list[Any]:
    return [draw(dice, depth) for _ in range(dice.randint(1, 3))]


def named(dice: random.Random, depth: int) -> dict[str, Any]:
    return {name: draw(dice, depth) for name in dice.sample(["a", "b", "c"], dice.randint(1, 2))}


def names(dice: random.Random) -> list[str]:
    return dice.sample(["a", "b", "c"], dice.randint(1, 2))


PATTERNS = ["^a", "b$", "^[a-c]*$", "a|b", "^(?!a)", "^.{2}$", "\\d"]
DRAWN: dict[str, Any] = {
    "enum": lambda dice, depth: dice.sample(VALUES, dice.randint(1, 5)),
    "const": lambda dice, depth: dice.choice(VALUES),
    "minimum": lambda dice, depth: dice.choice([-3, 0, 1, 2.5]),
    "exclusiveMaximum": lambda dice, depth: dice.choice([0, 1, 2.5, 8]),
    "multipleOf": lambda dice, depth: dice.choice([1, 2, 3]),
    "minLength": lambda dice, depth: dice.randint(0, 2),
    "maxLength": lambda dice, depth: dice.randint(0, 3),
    "pattern": lambda dice, depth: dice.choice(PATTERNS),
    "minItems": lambda dice, depth: dice.randint(0, 2),
    "maxItems": lambda dice, depth: dice.randint(0, 3),
    "required": lambda dice, depth: names(dice),
    "maxProperties": lambda dice, depth: dice.randint(0, 2),
    "minProperties": lambda dice, depth: dice.randint(0, 1),
    "dependentRequired": lambda dice, depth: {name: names(dice) for name in names(dice)},
    "items": draw,
    "prefixItems": several,
    "contains": draw,
    "properties": named,
    "additionalProperties": draw,
    "patternProperties": lambda dice, depth: {dice.choice(PATTERNS): draw(dice, depth)},
    "propertyNames": lambda dice, depth: {"pattern": dice.choice(PATTERNS)},
    "dependentSchemas": named,
    "allOf": several,
    "anyOf": several,
    "oneOf": several,
    "not": draw,
    "if": draw,
    "then": draw,
    "else": draw,
}
PLAIN = list(DRAWN)[:14]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_random_schemas_against_jsonschema(part: int) -> None:
    """Neither an invalid value accepted nor a valid one refused; samples validate."""
    enforced = 0
    for case in range(CASES):
        dice = random.Random(f"{part} {case}")
        schema = draw(dice, 2)
        validator = Draft202012Validator(schema)
        try:
            grammar = compiled(schema)
        except Refusal as error:
            if "allows no value" in str(error):
                assert not any(validator.is_valid(value) for value in VALUES), schema
            continue
        enforced += 1
        matcher = grammar.matcher()
        for value in VALUES:
            right = validator.is_valid(value)
            assert accepts(matcher, value) is right, (schema, value)
        try:
            text = sample(grammar, case)
        except GrammarError:
            continue
        assert validator.is_valid(json.loads(text)), (schema, text)
    assert enforced > CASES // 3


@pytest.mark.slow
@pytest.mark.parametrize("part", range(3))
def test_what_is_written_from_real_schemas_validates(part: int) -> None:
    enforced = 0
    for at, entry in enumerate(schemas()[part::3][: max(15, CASES // 10)]):
        schema = json.loads(entry.schema)
        try:
            grammar = GuidanceGrammar(
                grammar_of(Constraint("json_schema", entry.schema), ""), BYTES, False
            )
        except GrammarError:
            continue
        enforced += 1
        text = sample(grammar, at)
        assert validator_for(schema)(schema).is_valid(json.loads(text)), (entry.name, text)
    assert enforced


@pytest.mark.slow
def test_generations_of_tokens_validate() -> None:
    """Random tokens of canonical masks, cut at the end that the grammar sees."""
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "pattern": "^[A-Z][a-z]{1,5}$"},
            "kind": {"enum": ["red", "green", "dark green"]},
            "size": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 3},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 3},
        },
        "required": ["name", "kind", "size"],
        "additionalProperties": False,
    }
    known = embedded()
    grammar = GuidanceGrammar(grammar_of(Constraint("json_schema", json.dumps(schema)), ""), known)
    validator = Draft202012Validator(schema)
    for case in range(CASES):
        dice = random.Random(case)
        matcher, text = grammar.matcher(), b""
        while not matcher.finished:
            bits = np.unpackbits(np.frombuffer(matcher.mask(), np.uint8), bitorder="little")
            going = [int(t) for t in np.flatnonzero(bits) if int(t) not in known.eos]
            token = dice.choice(going)
            assert matcher.advance(token)
            text += known.tokens[token]
        assert validator.is_valid(json.loads(text)), text


# -- numbers -------------------------------------------------------------------------------------

EDGES = list(map(Decimal, ("-12.5", "-10", "-1.05", "-1", "-0.25", "0", "0.001", "0.5", "0.9",
                          "1", "1.5", "9.99", "10", "10.1", "99", "100", "123")))  # fmt: skip
OFF = list(map(Decimal, ("0", "0.1", "-0.1", "1", "-1", "0.01")))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["integer", "number"])
def test_bounds(kind: str) -> None:
    """Every pair of bounds, inclusive or not, against comparing numbers."""
    dice = random.Random(kind)
    near = {edge + off for edge in EDGES for off in OFF}
    for _ in range(CASES):
        low, high = dice.choice([*EDGES, None]), dice.choice([*EDGES, None])
        schema: dict[str, Any] = {"type": kind}
        if low is not None:
            schema[dice.choice(["minimum", "exclusiveMinimum"])] = float(low)
        if high is not None:
            schema[dice.choice(["maximum", "exclusiveMaximum"])] = float(high)
        validator = Draft202012Validator(schema)
        try:
            matcher = compiled(schema).matcher()
        except Refusal:
            assert not any(validator.is_valid(float(value)) for value in near), schema
            continue
        for value in dice.sample(sorted(near), 40):
            for text in {f"{value:f}", f"{value.normalize():f}", f"{value:f}00" if "." in str(value)
                         else f"{value:f}"}:  # fmt: skip
                number = json.loads(text)
                right = validator.is_valid(number) and (kind == "number" or "." not in text)
                if text in ("-0", "-0.0", "-0.00"):
                    continue
                assert accepts_text(matcher.fork(), text) is right, (schema, text)


def test_numbers_have_no_leading_zeros_and_no_ends_left_open() -> None:
    for schema in ({"type": "number"}, {"type": "number", "minimum": 0}, {"type": "integer"},
                   {"type": "number", "minimum": -5, "maximum": 5.5}):  # fmt: skip
        matcher = compiled(schema).matcher()
        for text in ("01", "1.", ".5", "+1", "--1", "1e", "00", "-", "0x1", "1_0", "NaN"):
            assert not accepts_text(matcher.fork(), text), (schema, text)
        assert accepts_text(matcher.fork(), "4")


# -- strings -------------------------------------------------------------------------------------

TEXTS = ["", "a", "b", "ab", "ba", "abc", "a\nb", "a\n", "\n", "é", "٣", "3", "a3", "_", "-", " ",
         "\"", "\\", "a\"b", "日本", "🙂", "A", "aA", "\t", "\x1c", "\u2028", "\u00a0"]  # fmt: skip
SOURCES = ["a", "^a", "a$", "^a$", "^$", "", ".", "^.$", "^.*$", "\\d", "^\\D$", "\\w", "^\\W+$",
           "\\s", "^\\S*$", "[^a]", "^[^\\d]$", "^(a|b)+$", "(^a|b$)", "^a|b|c$", "(?i)^A$",
           "^[\\w-]+$", "a{2,}|^b?$", "\\\\", "\"", "^(?!a)", "^(?=.*b)a", "\\bb", "^a\\b",
           "(?<=a)b", "[\\u4e00-\\u9fff]", "\\x61", "^[\\s\\S]{2}$", "\\n"]  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_a_pattern_is_found_as_re_and_ecma_find_it(source: str) -> None:
    """The terminal agrees if both readings agree on a text; else it does not match."""
    grammar = GuidanceGrammar(f"start: T\nT: {pattern_of(source).expression}", BYTES)
    for text in TEXTS:
        wide = re.search(source, text) is not None
        narrow = re.search(source, text, re.ASCII) is not None
        found = accepts_text(grammar.matcher(), json.dumps(text, ensure_ascii=False))
        if found:
            assert wide, text
            assert narrow, text
        elif wide and narrow and text.isascii():
            assert text.endswith("\n"), text  # where $ is before a last newline for re alone


@pytest.mark.slow
@pytest.mark.parametrize("name", _PATTERNS)
def test_formats_against_jsonschema(name: str) -> None:
    """Generated texts of a format satisfy the format's own checker, if there is one."""
    grammar = compiled({"type": "string", "format": name})
    validator = Draft202012Validator(
        {"format": name}, format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    for seed in range(max(20, CASES // 8)):
        text = sample(grammar, seed)
        assert validator.is_valid(json.loads(text)), text
