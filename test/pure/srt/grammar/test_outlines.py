"""outlines-core behind the interface of grammars."""

from __future__ import annotations

import json
import random
import re
from typing import Any

import numpy as np
import pytest
from helpers.json_acceptor import BYTES, END, accepts, accepts_text
from helpers.paths import TESTS
from helpers.vocabularies import toy
from sglang.ir.constraint import Constraint
from sglang.srt.grammar import outlines
from sglang.srt.grammar.compile_plan import make_plan
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.outlines import OutlinesGrammar, pattern_of

SUITE = TESTS / "data" / "json-schema-test-suite" / "draft2020-12"


def schema_grammar(schema: Any, whitespace: str = "") -> OutlinesGrammar:
    constraint = Constraint("json_schema", json.dumps(schema))
    return OutlinesGrammar(pattern_of(constraint, whitespace), BYTES)


def ids(mask: bytes) -> list[int]:
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
    return [int(one) for one in np.flatnonzero(bits)]


PATTERNS = ["[a-c]{2,4}", "(ab|ba)*0?", "\\d{3}-\\w", "a", "é|日b?", "[^a]b"]
TEXTS = ["", "a", "ab", "abab0", "abc", "123-é", "123-a", "é", "日b", "日", "xb", "ab0", "abcba"]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_regex_is_read_as_re_reads_it(pattern: str) -> None:
    grammar = OutlinesGrammar(pattern_of(Constraint("regex", pattern), ""), BYTES)
    assert grammar.path == "outlines"
    for text in TEXTS:
        right = re.fullmatch(pattern, text) is not None
        assert accepts_text(grammar.matcher(), text) is right, text


@pytest.mark.parametrize("pattern", ["[ab]{2,6}", "(ab|01)+é?", "(a|日){1,3}"])
def test_masks_forced_rollback_and_forks(pattern: str) -> None:
    known = toy()
    grammar = OutlinesGrammar(pattern_of(Constraint("regex", pattern), ""), known)
    dice = random.Random(pattern)
    for _ in range(30):
        matcher, taken = grammar.matcher(), []
        while True:
            mask = matcher.mask()
            assert len(mask) == 4 * known.words
            found = ids(mask)
            for token in range(known.size):
                if token not in known.eos:
                    assert matcher.fork().advance(token) == (token in found)
            assert [t for t in found if t in known.eos] == (
                list(known.eos) if matcher.accepting else []
            )
            run = matcher.forced(4)
            assert matcher.draft(4) == run
            if run:
                assert found == [run[0]]
            going = [token for token in found if token not in known.eos]
            assert matcher.finished == (matcher.accepting and not going)
            if not going:
                break
            taken.append(dice.choice(going))
            assert matcher.advance(taken[-1])
        back = dice.randint(0, len(taken))
        matcher.rollback(back)
        fresh = grammar.matcher()
        assert all(fresh.advance(token) for token in taken[: len(taken) - back])
        assert fresh.mask() == matcher.mask()
        with pytest.raises(ValueError, match="rollback"):
            matcher.rollback(len(taken) - back + 1)
    assert not grammar.matcher().advance(known.eos[0])
    assert not grammar.matcher().advance(-1)


def test_suite() -> None:
    """Keywords that are not enforced are refused, never accepted."""
    enforced, wrong = 0, []
    for path in sorted(SUITE.glob("*.json")):
        for group in json.loads(path.read_text()):
            try:
                grammar = schema_grammar(group["schema"])
            except GrammarError:
                continue
            enforced += 1
            wrong += [
                (path.stem, group["description"], test["description"])
                for test in group["tests"]
                if not test["valid"] and accepts(grammar.matcher(), test["data"])
            ]
    assert wrong == []
    assert enforced >= 20


def test_a_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"type": "string", "pattern": "^.*$"},
            "b": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 2},
            "c": {"enum": ['x"y', 1, None]},
        },
        "required": ["a"],
        "$defs": {"n": {"type": "integer"}},
    }
    grammar = schema_grammar(schema)
    for value in ({"a": 'é"\\'}, {"a": "", "b": [1, 2]}, {"a": "", "c": 'x"y'}):
        assert accepts(grammar.matcher(), value)
    wrong: list[Any] = [{"b": []}, {"a": "", "b": [1, 2, 3]}, {"a": "", "c": 2}, {"a": "", "d": 1}]
    for other in wrong:
        assert not accepts(grammar.matcher(), other)
    assert not accepts_text(grammar.matcher(), '{"a":"x","b":[1],"c":1},"b":2}')
    assert not accepts_text(grammar.matcher(), '{"a": ""}')
    assert accepts_text(schema_grammar(schema, "[ ]?").matcher(), '{"a": ""}')


REFUSED = [
    ({"type": "integer", "minimum": 3}, "/minimum"),
    ({"type": "object"}, "/"),
    ({"type": "array"}, "/"),
    (True, "/"),
    ({"properties": {"a": {}}, "type": "object"}, "/properties/a"),
    ({"allOf": [{}]}, "/allOf"),
    ({"oneOf": [{"type": "null"}]}, "/oneOf"),
    ({"type": "string", "pattern": "a", "maxLength": 3}, "/pattern"),
    ({"type": "object", "properties": {"a": {"type": "null"}},
      "additionalProperties": {"type": "null"}}, "/additionalProperties"),
    ({"type": "object", "properties": {"a": {"type": "null"}}, "minProperties": 1},
     "/minProperties"),
    ({"properties": {"a": {"not": {"type": "null"}}}}, "/properties"),
    ({"type": "number"}, ""),
    ({"$ref": "#/$defs/a", "$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}},
     "/$defs/a"),
    ({"uniqueItems": True, "type": "array"}, "/uniqueItems"),
    ({"type": "string", "format": "my-own"}, "/format"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "pointer"), REFUSED, ids=range(len(REFUSED)))
def test_what_it_does_not_enforce_is_refused(schema: Any, pointer: str) -> None:
    if not pointer:
        assert all(accepts(schema_grammar(schema).matcher(), value) for value in (1, -2.5, 10))
        return
    with pytest.raises(GrammarError, match=re.escape(f"at {pointer}")):
        schema_grammar(schema)


def test_a_long_index_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    for pattern in ("(((.{1,30}){1,30}){1,30})", "a{1,2000}"):
        with pytest.raises(GrammarError, match=r"[uU]se --grammar-backend auto"):
            pattern_of(Constraint("regex", pattern), "")
    monkeypatch.setattr(outlines, "MOST_WORK", 1000)
    with pytest.raises(GrammarError, match="states times tokens are 2056"):
        OutlinesGrammar("a{7}", BYTES)


def test_other_kinds_are_refused() -> None:
    with pytest.raises(GrammarError, match="'ebnf'"):
        pattern_of(Constraint("ebnf", 'start: "a"'), "")
    with pytest.raises(GrammarError, match="not JSON"):
        pattern_of(Constraint("json_schema", "{"), "")


def test_one_end_token_more() -> None:
    grammar = OutlinesGrammar("ab?", BYTES)
    matcher = grammar.matcher()
    assert ids(matcher.mask()) == [ord("a")]
    assert matcher.forced(5) == [ord("a")]
    assert matcher.advance(ord("a"))
    assert ids(matcher.mask()) == [ord("b"), END]


def test_names_that_need_escapes_are_refused() -> None:
    """outlines-core writes them as they are, which is no JSON."""
    schema = {"type": "object", "properties": {'a"b': {"type": "integer"}},
              "required": ['a"b'], "additionalProperties": False}  # fmt: skip
    plan = make_plan(Constraint("json_schema", json.dumps(schema)), "outlines", "")
    assert "/properties" in plan.error
    assert "needs escapes" in plan.error
