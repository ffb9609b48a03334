"""Constraints as requests carry them: sampling_params, and the OpenAI routes' fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.http_server import is_error
from helpers.scripted import Scripted, posted
from helpers.toy_tokenizer import byte_level
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.ir.constraint import KINDS, MAX_BYTES, MAX_CHOICES, Constraint
from sglang.ir.sampling import SamplingParams
from sglang.srt.requests.completion.completion_request import sampling_from
from sglang.srt.requests.completion.constraint_settings import MAX_NESTING, MAX_SCORED
from sglang.srt.requests.completion.output import Finish
from sglang.srt.requests.completion.whole_choices import ScoredChoice, pick, verify_whole
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer

SCHEMA = {"type": "object", "properties": {"b": {"const": "é"}, "a": {"type": "integer"}}}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}
COMPACT = '{"type":"object","properties":{"b":{"const":"é"},"a":{"type":"integer"}}}'
CHAT = {"messages": [{"role": "user", "content": "a"}]}


@pytest.fixture
def scripted(tmp_path: Path) -> Scripted:
    return Scripted(Tokenizer(byte_level(tmp_path)))


def read(**settings: Any) -> Constraint | None:
    return sampling_from(settings).constraint


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"not": value}
    return value


# -- sampling_params ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "constraint"),
    [
        ({"regex": "a+"}, Constraint("regex", "a+")),
        ({"ebnf": "start: \"a\""}, Constraint("ebnf", 'start: "a"')),
        ({"json_schema": SCHEMA}, Constraint("json_schema", COMPACT)),
        ({"json_schema": json.dumps(SCHEMA, indent=4)}, Constraint("json_schema", COMPACT)),
        ({"json_schema": True}, Constraint("json_schema", "true")),
        ({"json_schema": "false"}, Constraint("json_schema", "false")),
        ({"json_schema": {}, "whitespace_pattern": "[ ]?"},
         Constraint("json_schema", "{}", "[ ]?")),
        ({"structural_tag": TAG}, Constraint("structural_tag", json.dumps(TAG).replace(" ", ""))),
        ({"choices": ["b", "é"]}, Constraint("choices", '["b", "é"]')),
        ({"choices": ("b",), "choices_scoring": "tokens"}, Constraint("choices", '["b"]')),
        ({"regex": None, "ebnf": None, "choices_scoring": None}, None),
    ],
)  # fmt: skip
def test_what_a_request_says(settings: dict[str, Any], constraint: Constraint | None) -> None:
    assert read(**settings) == constraint
    params = sampling_from({**settings, "n": 3, "max_new_tokens": 0})
    assert (params.n, params.constraint) == (3, constraint)


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"regex": "a", "ebnf": "b"}, "regex and ebnf exclude one another", ""),
    ({"regex": "a", "json_schema": {}, "choices": ["a"]}, "regex and json_schema and choices", ""),
    ({"regex": 5}, "regex is 5; give a text", "regex"),
    ({"regex": ["a"]}, "regex is ['a']; give a text", "regex"),
    ({"regex": "a" * 5000}, "regex has 5000 bytes; at most 4096", "regex"),
    ({"regex": "\ud800"}, "regex holds a lone surrogate", "regex"),
    ({"ebnf": {}}, "ebnf is {}; give a text", "ebnf"),
    ({"json_schema": 5}, "json_schema is 5; give a JSON schema", "json_schema"),
    ({"json_schema": "[]"}, "json_schema is []; give a JSON schema", "json_schema"),
    ({"json_schema": '{"a": 1, "a": 2}'}, "key 'a' appears twice", "json_schema"),
    ({"json_schema": '{"a": 1'}, "json_schema is not valid JSON: Expecting", "json_schema"),
    ({"json_schema": {"const": float("nan")}}, "json_schema is not valid JSON", "json_schema"),
    ({"json_schema": '{"const": 1e999}'}, "json_schema is not valid JSON", "json_schema"),
    ({"json_schema": {"const": {1}}}, "json_schema is not valid JSON", "json_schema"),
    ({"json_schema": {"const": "\udc80"}}, "json_schema holds a lone surrogate", "json_schema"),
    ({"json_schema": '{"a": "' + "x" * MAX_BYTES["json_schema"] + '"}'}, "at most", "json_schema"),
    ({"json_schema": "[" * 200_000}, "json_schema is nested deeper than 128", "json_schema"),
    ({"json_schema": nested(MAX_NESTING + 1)}, "is nested deeper than 128", "json_schema"),
    ({"structural_tag": True}, "structural_tag is true; give an object", "structural_tag"),
    ({"choices": "abc"}, "choices is 'abc'; give a list", "choices"),
    ({"choices": []}, "choices has 0 entries; give 1 to", "choices"),
    ({"choices": ["a", 1]}, "choices holds 1; give texts", "choices"),
    ({"choices": ["a"] * (MAX_CHOICES + 1)}, f"give 1 to {MAX_CHOICES}", "choices"),
    ({"choices": ["a"], "choices_scoring": "best"}, "choices_scoring is 'best'; use one of tokens",
     "choices_scoring"),
    ({"choices_scoring": "whole"}, "given without choices", "choices_scoring"),
    ({"choices": ["a"] * (MAX_SCORED + 1), "choices_scoring": "whole"}, "scored as wholes",
     "choices"),
    ({"choices": ["a", ""], "choices_scoring": "whole"}, "is empty; a choice needs", "choices"),
    ({"choices": ["a", "b", "a"]}, "choices[2] is the same as choices[0]", "choices"),
    ({"regex": "a", "whitespace_pattern": " "}, "whitespace_pattern is given without",
     "whitespace_pattern"),
    ({"json_schema": {}, "whitespace_pattern": 5}, "whitespace_pattern is 5",
     "whitespace_pattern"),
    ({"json_schema": {}, "whitespace_pattern": " " * 300}, "at most 256", "whitespace_pattern"),
    ({"json_schema": {}, "whitespace_pattern": "\xa0"}, "no JSON has", "whitespace_pattern"),
    ({"jsonschema": {}}, "Did you mean 'json_schema'", "jsonschema"),
    ({"temprature": 1}, "Did you mean 'temperature'", "temprature"),
    ({"max_new_token": 1}, "Did you mean 'max_new_tokens'", "max_new_token"),
    ({"top_n": 1}, "Unknown sampling parameter 'top_n'.", "top_n"),  # neither top_k nor top_p
    ({"constraint": {"kind": "regex", "text": "a"}}, "Unknown sampling parameter", "constraint"),
]  # fmt: skip


@pytest.mark.parametrize(("settings", "words", "param"), BAD)
def test_what_is_wrong_is_named(settings: dict[str, Any], words: str, param: str) -> None:
    with pytest.raises(RequestError) as caught:
        sampling_from(settings)
    assert words in caught.value.message
    assert caught.value.param == (param or next(iter(settings)))


def test_the_deepest_schema() -> None:
    constraint = read(json_schema=nested(MAX_NESTING))
    assert constraint is not None
    assert json.loads(constraint.text) == nested(MAX_NESTING)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab\"é::="), inner),
    max_leaves=12,
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=40)
@given(st.dictionaries(st.text("xyz"), JSON))
def test_a_schema_and_its_text_are_the_same_constraint(schema: dict[str, Any]) -> None:
    constraint = read(json_schema=schema)
    assert constraint == read(json_schema=json.dumps(schema, indent=1))
    assert constraint is not None
    found = json.loads(constraint.text)
    assert found == schema
    assert list(found) == list(schema)


# -- the OpenAI routes ----------------------------------------------------------------------------


def asked(scripted: Scripted, path: str, **fields: Any) -> SamplingParams:
    body = {**(CHAT if "chat" in path else {"prompt": "a"}), "max_tokens": 4, **fields}
    reply = posted(scripted, path, body)
    assert reply.status_code == 200, reply.text
    return scripted.requests[-1].sampling


FIELDS: list[tuple[dict[str, Any], Constraint | None]] = [
    ({"response_format": {"type": "text"}}, None),
    ({"response_format": {"type": "text"}, "regex": "a"}, Constraint("regex", "a")),
    ({"response_format": {"type": "json_object"}}, Constraint("json_schema", '{"type":"object"}')),
    ({"response_format": {"type": "json_schema",
                          "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}},
     Constraint("json_schema", COMPACT)),
    ({"response_format": TAG}, Constraint("structural_tag", json.dumps(TAG).replace(" ", ""))),
    ({"regex": "a+"}, Constraint("regex", "a+")),
    ({"ebnf": "root ::= \"a\""}, Constraint("ebnf", 'root ::= "a"')),
    ({"json_schema": COMPACT, "whitespace_pattern": ""},
     Constraint("json_schema", COMPACT, "")),
    ({"choices": ["a"]}, Constraint("choices", '["a"]')),
    ({"guided_json": SCHEMA}, Constraint("json_schema", COMPACT)),
    ({"guided_regex": "a"}, Constraint("regex", "a")),
    ({"guided_choice": ["a"]}, Constraint("choices", '["a"]')),
    ({"guided_grammar": "x"}, Constraint("ebnf", "x")),
    ({"grammar": "x"}, Constraint("ebnf", "x")),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}},
     Constraint("json_schema", COMPACT)),
    ({"structured_outputs": {"json": SCHEMA, "disable_fallback": False}},
     Constraint("json_schema", COMPACT)),
    ({"structured_outputs": {"choice": ["a"]}}, Constraint("choices", '["a"]')),
    ({"structured_outputs": {"json_object": True}},
     Constraint("json_schema", '{"type":"object"}')),
]  # fmt: skip


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(("fields", "constraint"), FIELDS)
def test_fields_of_the_openai_routes(
    scripted: Scripted, path: str, fields: dict[str, Any], constraint: Constraint | None
) -> None:
    assert asked(scripted, path, **fields).constraint == constraint


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"response_format": {"type": "json_object"}, "regex": "a"}, "json_schema",
         "regex and json_schema exclude"),
        ({"response_format": {"type": "json_object"}, "json_schema": {}}, "response_format",
         "json_schema and response_format exclude"),
        ({"regex": "a", "guided_regex": "b"}, "guided_regex", "regex and guided_regex exclude"),
        ({"response_format": {"type": "grammar"}}, "response_format", "use one of text"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "schema is missing"),
        ({"response_format": {}}, "response_format", "type is None"),
        ({"structured_outputs": {"jsn": 1}}, "structured_outputs", "'jsn'; use one of json"),
        ({"regex": 5}, "regex", "regex is 5"),
    ],
)  # fmt: skip
def test_bad_fields_of_the_openai_routes(
    scripted: Scripted, fields: dict[str, Any], param: str, words: str
) -> None:
    error = is_error(posted(scripted, "/v1/chat/completions", {**CHAT, **fields}), 400)
    assert words in error["message"]
    assert error["param"] == param or "exclude" in words


def test_the_engines_refusal_is_a_400(scripted: Scripted) -> None:
    scripted.refuse = RequestError("regex[3]: no")
    for path, body in (
        ("/generate", {"text": "a", "sampling_params": {"regex": "aaa)"}}),
        ("/generate", {"text": "a", "sampling_params": {"regex": "aaa)"}, "stream": True}),
        ("/v1/chat/completions", {**CHAT, "regex": "aaa)", "stream": True}),
        ("/v1/completions", {"prompt": "a", "regex": "aaa)"}),
    ):
        assert is_error(posted(scripted, path, body), 400)["message"] == "regex[3]: no"


def test_a_dead_end(scripted: Scripted) -> None:
    """The text so far is returned with the reason."""
    scripted.text, scripted.finish = "so far", Finish("error", None, "nothing can follow")
    found = posted(scripted, "/generate", {"text": "a"}).json()
    reason = {"type": "error", "message": "nothing can follow"}
    assert (found["text"], found["meta_info"]["finish_reason"]) == ("so far", reason)
    for path, body in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", CHAT)):
        (choice,) = posted(scripted, path, body).json()["choices"]
        assert (choice["finish_reason"], choice["finish_message"]) == ("error", reason["message"])
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert text == "so far"


def test_counts_of_the_engine_are_told(scripted: Scripted) -> None:
    meta = posted(scripted, "/generate", {"text": "a"}).json()["meta_info"]
    for name in ("forward_passes", "forced_tokens", "drafted_tokens", "accepted_tokens"):
        assert meta[name] == 0


def test_model_info_tells_the_kinds(scripted: Scripted) -> None:
    from sglang.srt.requests.completion.completion_request import CONSTRAINTS

    assert CONSTRAINTS == KINDS == ("regex", "json_schema", "ebnf", "structural_tag", "choices")


# -- choices as wholes ----------------------------------------------------------------------------


def test_a_draw_follows_the_scores() -> None:
    totals = [-3.0, -1.0, -2.0, -1.0]
    assert pick(totals, SamplingParams(temperature=0.0)) == 1
    assert pick(totals, SamplingParams(top_k=1)) == 1
    drawn = [pick(totals, SamplingParams(seed=seed, temperature=0.5)) for seed in range(4000)]
    weights = [2.718281828 ** (total / 0.5) for total in totals]
    for index, weight in enumerate(weights):
        share = weight / sum(weights)
        assert abs(drawn.count(index) / 4000 - share) < 4 * (share * (1 - share) / 4000) ** 0.5
    assert pick(totals, SamplingParams(seed=5)) == pick(totals, SamplingParams(seed=5))
    assert pick([-1e300, -5.0], SamplingParams(temperature=1e-5, seed=1)) == 1


def test_what_wholes_cannot_honour() -> None:
    verify_whole(SamplingParams(seed=3, temperature=0.5, stop=("x",), n=2))
    verify_whole(SamplingParams(top_k=1))
    for name, value in {"top_p": 0.5, "min_p": 0.1, "logit_bias": {1: 1.0}, "top_k": 5}.items():
        fields: dict[str, Any] = {name: value}
        params = SamplingParams(**fields)
        with pytest.raises(ValueError, match=f"{name} works on tokens"):
            verify_whole(params)


def test_the_score_of_a_choice() -> None:
    assert ScoredChoice("x", [1, 2], [-1.0, -0.5]).total == -1.5
