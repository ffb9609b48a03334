"""The ways in which models write calls: what a text says, however it is cut."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from helpers.scripted import pieces
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sglang.semantics.tool_calls.deltas import Arguments, Begin, Delta, joined
from sglang.semantics.tool_calls.tool_format import Tool, ToolFormat, constraint_of
from sglang.semantics.tool_calls.tool_formats import (
    FORMATS,
    Hermes,
    Llama3,
    Mistral,
    Pythonic,
    Tiny,
    format_for,
)
from sglang.semantics.tool_calls.tool_formats.literal import Literal
from sglang.srt.config.sections import TOOL_CALL_PARSERS

Called = list[tuple[str, str]]
FORMS: dict[str, ToolFormat] = {
    "hermes": Hermes(), "llama3": Llama3(), "mistral": Mistral(), "mistral by name": Mistral(True),
    "pythonic": Pythonic(), "tiny": Tiny(),
}  # fmt: skip
ANY: dict[str, Any] = {"type": "object", "properties": {}}
WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TEXT: dict[str, Any] = {"type": "object", "properties": {"q": {"type": "string"}}}


def tool(place: int, name: str, parameters: dict[str, Any]) -> Tool:
    function = {"name": name, "parameters": parameters}
    return Tool(place, name, parameters, False, {"type": "function", "function": function})


TOOLS = (tool(0, "add", ANY), tool(1, "get_weather", WEATHER), tool(2, "calc", TEXT))
NAMES = {tool.name for tool in TOOLS}


def deltas(form: ToolFormat, parts: list[str], cut: bool = False) -> list[Delta]:
    parser = form.parser(TOOLS)
    found = [delta for part in parts for delta in parser.feed(part)]
    return [*found, *parser.finish(cut)]


def parsed(form: ToolFormat, *parts: str, cut: bool = False) -> tuple[str, Called]:
    return joined(deltas(form, list(parts), cut))


# -- calls in a text ------------------------------------------------------------------------------

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
COLOGNE = [("get_weather", '{"city": "Köln"}')]
GIVEN: dict[str, list[tuple[str, str, Called]]] = {
    "hermes": [
        ("", "", []),
        (" plain \n", " plain \n", []),
        (CALL, "", COLOGNE),
        (f"\n {CALL} \n", "", COLOGNE),
        (f"I look.\n\n{CALL}\n{CALL}", "I look.", COLOGNE * 2),
        (f"a{CALL}b", "ab", COLOGNE),
        (f"a {CALL} b", "a b", COLOGNE),
        ('<tool_call>{"arguments":{"a":[1,{"b":"}"}]},"name":"add"}</tool_call>', "",
         [("add", '{"a":[1,{"b":"}"}]}')]),
        ('<tool_call>{"name":"add"}</tool_call>', "", [("add", "{}")]),
        ('<tool_call>{"id":-1.5e3, "x": null,"name":"add","arguments":{"s":"\\"}\\\\"},"y":[1]}',
         "", [("add", '{"s":"\\"}\\\\"}')]),
        ('<tool_call>{"name":"\\u0061dd","arguments":{}}</tool_call>', "", [("add", "{}")]),
        ('<tool_call>{"name":"add","arguments":{"a": 1', "", [("add", '{"a": 1')]),  # cut off
        (f"{CALL[:-3]}", "", COLOGNE),
        ('<tool_call>{"name":"add","argum', '<tool_call>{"name":"add","argum', []),
        ('<tool_call>{"name":"rm","arguments":{}}</tool_call>',
         '<tool_call>{"name":"rm","arguments":{}}</tool_call>', []),
        ('<tool_call>{"name":"add","arguments":"{}"}</tool_call>',
         '<tool_call>{"name":"add","arguments":"{}"}</tool_call>', []),
        ('<tool_call>[{"name":"add"}]</tool_call>', '<tool_call>[{"name":"add"}]</tool_call>', []),
        ("the <tool_call> tag, </tool_call>", "the <tool_call> tag, </tool_call>", []),
        (f"<tool_<tool_call{CALL}", "<tool_<tool_call", COLOGNE),
        (f"<tool_call>{CALL}", "<tool_call>", COLOGNE),
        ('<tool_call>{"name":"add","arguments":{}}<tool_call>{"name":"add","arguments":{}}', "",
         [("add", "{}")] * 2),
        ('<tool_call>{"name":"add","name":"add","arguments":{}}</tool_call>',
         '<tool_call>{"name":"add","name":"add","arguments":{}}</tool_call>', []),
        ('<tool_call>{"name":"add","arguments":{} so', "so", [("add", "{}")]),
    ],
    "llama3": [
        ('{"name": "add", "parameters": {"a": 1}}', "", [("add", '{"a": 1}')]),
        ('{"name": "add", "arguments": {}}', "", [("add", "{}")]),
        ('{"type": "function", "name": "add", "parameters": {}}', "", [("add", "{}")]),
        ('<|python_tag|>{"name": "add", "parameters": {}}', "", [("add", "{}")]),
        ('So <|python_tag|> {"name": "add", "parameters": {}}', "So", [("add", "{}")]),
        ('{"name": "add", "parameters": {}}; {"name": "get_weather", "parameters": {"city": ""}}',
         "", [("add", "{}"), ("get_weather", '{"city": ""}')]),
        ('{"name": "add", "parameters": {}}\n{"name": "add", "parameters": {}}', "",
         [("add", "{}")] * 2),
        ('Look:\n  {"name": "add", "parameters": {}}', "Look:", [("add", "{}")]),
        ('{"name": "add", "parameters": {}}; and', "; and", [("add", "{}")]),
        ('It is {"name": "add", "parameters": {}}', 'It is {"name": "add", "parameters": {}}', []),
        ('{"name": "rm", "parameters": {}}', '{"name": "rm", "parameters": {}}', []),
        ('{"title": "x", "name": "add"}', '{"title": "x", "name": "add"}', []),
        ("{\n{", "{\n{", []),
        ('<\n{"name": "add", "parameters": {}}', "<", [("add", "{}")]),
        ("<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    ],
    "mistral": [
        ('[TOOL_CALLS][{"name": "add", "arguments": {"a": "]"}}]', "", [("add", '{"a": "]"}')]),
        ('[TOOL_CALLS] [{"name": "add", "arguments": {}}, {"arguments": {"a":1}, "name": "add"}]',
         "", [("add", "{}"), ("add", '{"a":1}')]),
        ('Hm. [TOOL_CALLS]add[ARGS]{"a": {}}', "Hm.", [("add", '{"a": {}}')]),
        ('[TOOL_CALLS]add[CALL_ID]abc123def[ARGS]{}[TOOL_CALLS]calc[ARGS]{"q": "}"}', "",
         [("add", "{}"), ("calc", '{"q": "}"}')]),
        ("[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
        ("[TOOL_CALLS]rm[ARGS]{}", "[TOOL_CALLS]rm[ARGS]{}", []),
        ("[TOOL_CALLS]add{}", "[TOOL_CALLS]add{}", []),
        ("[TOOL_CALLS]add[X]{}", "[TOOL_CALLS]add[X]{}", []),
        ("[TOOL_CALLS]" + "x" * 300, "[TOOL_CALLS]" + "x" * 300, []),
        ("a [TOOL_[1] b", "a [TOOL_[1] b", []),
    ],
    "pythonic": [
        ('[add(a=1, b="x"), get_weather(city=\'Köln\')]', "",
         [("add", '{"a": 1, "b": "x"}'), *COLOGNE]),
        ("[add()]", "", [("add", "{}")]),
        ("[add(a=[1, -2.5e3, .5, 1_000, 2., ], b={'k': None, \"l\": [True, False]},)]", "",
         [("add", '{"a": [1, -2.5e3, 0.5, 1000, 2.0], "b": {"k": null, "l": [true, false]}}')]),
        ("[add(a='it\\'s', b=\"\\x41\\u00e9\\n\\/\", c='\"')]", "",
         [("add", '{"a": "it\'s", "b": "\\u0041\\u00e9\\n/", "c": "\\""}')]),
        ('[add(**{"b c": 1, "d": {}})]', "", [("add", '{"b c": 1, "d": {}}')]),
        ("<|python_start|>[add()]<|python_end|>", "", [("add", "{}")]),
        ("So:\n[add()]\nDone", "So:\nDone", [("add", "{}")]),
        ("[add(a=[[1,], {'k': 2,}, 3])]", "", [("add", '{"a": [[1], {"k": 2}, 3]}')]),
        ("see [add()]", "see [add()]", []),
        ("[rm(a=1)]", "[rm(a=1)]", []),
        ("[add(1, 2)]", "[add(1, 2)]", []),
        ("[add(x)]", "[add(x)]", []),
        ("[1](http://a)", "[1](http://a)", []),
        ("[add(*a)]", "[add(*a)]", []),
        ("[add(***{})]", "[add(***{})]", []),
    ],
    "tiny": [
        ("<tool>calc(17*(3+4))</tool>", "", [("calc", '{"q": "17*(3+4)"}')]),
        ('Hm <tool>calc(a "b" \\)</tool> so', "Hm so", [("calc", '{"q": "a \\"b\\" \\\\"}')]),
        ('<tool>get_weather(city="Köln")</tool>', "", COLOGNE),
        ("<tool>add()</tool>", "", [("add", "{}")]),
        ("<tool>rm(1)</tool>", "<tool>rm(1)</tool>", []),
        ("<tool> the </tool>", "<tool> the </tool>", []),
    ],
}  # fmt: skip
SAYINGS = [(name, *row) for name, rows in GIVEN.items() for row in rows]


@pytest.mark.parametrize(("name", "text", "words", "calls"), SAYINGS)
def test_what_a_text_says(name: str, text: str, words: str, calls: Called) -> None:
    assert parsed(FORMS[name], text) == (words, calls)
    assert parsed(FORMS[name], *text) == (words, calls)


FRAGMENTS = st.sampled_from(
    ["so it is.\n[and {so\t on",
     "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<|python_start|>",
     "<|python_end|>", "<tool>", "</tool>", "\n", " ", "{", "}", '"', "'", "\\", ",", ";", ":", "(",
     ")", "[", "]", "=", "*", "1", "-", "True", "word", "<tool", "<", "[TOOL", "é", "add", "calc(",
     "add(", "[add(", "a=", '{"name": ', '"add"', '"rm"', ', "arguments": ', ', "parameters": ',
     '{"a": "b"}', '{"name": "add", "parameters": {}}', "\\u00e", "<|", "**{", "\ud7ff", CALL]
)  # fmt: skip
TEXTS = st.lists(FRAGMENTS, max_size=14).map("".join)
CUTS = st.lists(st.integers(0, 1000), max_size=12)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@given(TEXTS, CUTS, st.booleans())
@settings(max_examples=300)
@example('<tool_call>{"name":"add","arguments":{"a":"</tool_call>"}} <tool_call>', [3, 40], False)
@example("[add(a='", [4], True)
def test_the_chunks_do_not_matter(name: str, text: str, cuts: list[int], cut: bool) -> None:
    form = FORMS[name]
    whole = parsed(form, text, cut=cut)
    assert parsed(form, *pieces(text, cuts), cut=cut) == whole
    if not whole[1] and not cut:
        assert whole[0] == text  # byte for byte


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@given(TEXTS, CUTS)
@settings(max_examples=200)
def test_deltas_are_in_order(name: str, text: str, cuts: list[int]) -> None:
    """A call begins before its arguments, calls are numbered in turn, and none goes on later."""
    last = -1
    for delta in deltas(FORMS[name], pieces(text, cuts)):
        if isinstance(delta, Begin):
            assert (delta.call, delta.name in NAMES) == (last + 1, True)
            last = delta.call
        elif isinstance(delta, Arguments):
            assert delta.call == last
            assert delta.text
        else:
            assert delta.text


KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
GIVEN_ARGUMENTS = st.one_of(
    st.tuples(st.just("add"), st.dictionaries(KEYS, JSON, max_size=4)),
    st.tuples(st.just("calc"), st.fixed_dictionaries({"q": KEYS})),
    st.tuples(st.just("get_weather"), st.fixed_dictionaries({"city": KEYS, "days": JSON})),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
@given(st.lists(GIVEN_ARGUMENTS, min_size=1, max_size=3), CUTS)
@settings(max_examples=200)
def test_what_is_written_is_read_back(
    name: str, calls: list[tuple[str, dict[str, Any]]], cuts: list[int]
) -> None:
    form = FORMS[name]
    # A single text that is no argument's own looks like keywords in that format.
    one = [c for c in calls if not (name == "tiny" and c[0] == "add" and len(c[1]) == 1)]
    words, found = parsed(form, *pieces(form.written(one), cuts))
    assert words == ("" if one else form.written(one))
    assert [(called, json.loads(arguments)) for called, arguments in found] == one


@pytest.mark.parametrize("name", FORMS)
def test_a_cut_calls_arguments_end_where_the_text_ends(name: str) -> None:
    form = FORMS[name]
    text = form.written([("get_weather", {"city": "Köln", "days": 2})])
    seen = set()
    for end in range(len(text)):
        words, calls = parsed(form, text[:end], cut=True)
        parser = form.parser(TOOLS)
        parser.feed(text[:end])
        assert not words or (words == text[:end] and end < len("<|python_start|>"))
        assert not (words and form.marks[0] in words)
        for called, arguments in calls:
            assert called == "get_weather"
            whole = json.dumps({"city": "Köln", "days": 2}, ensure_ascii=False)
            assert whole.startswith(arguments)
            assert parser.cut == (arguments != whole) or arguments == whole
        seen.add(bool(calls))
    assert seen == {True, False}


HOSTILE = ['<tool_call>{"a":[', " ", "<tool_call>", '{"name": "add", "arguments": {"a": "x', "[",
           "[TOOL_CALLS]", "[TOOL_CALLS][{", "[TOOL_CALLS]add[", "\n[add(a=[", "[add(a='\\", "\n{",
           "<tool>calc()</too", "[add(a=1111", "<|python_tag|>;;", '{"name": "add", "parameters"',
           "[add(" + "a" * 300, "[add(**{", ";", "\\"]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMS)
def test_hostile_text_takes_linear_time(name: str) -> None:
    """Calls of Python functions a character, which the clock of a busy machine cannot blur."""

    def steps(text: str) -> int:
        count, parser = 0, FORMS[name].parser(TOOLS)

        def counted(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(counted)
        try:
            parser.feed(text)
            parser.finish()
        finally:
            sys.setprofile(None)
        return count

    for part in HOSTILE:
        few, many = steps(part * (2000 // len(part))), steps(part * (8000 // len(part)))
        assert many < 6 * few + 1000, part


# -- Python's values ------------------------------------------------------------------------------


@given(JSON, st.booleans())
def test_values_of_python_and_of_json(value: Any, python: bool) -> None:
    literal, said = Literal(), ""
    text = repr(value) if python else json.dumps(value)
    for char in f"{text} ":
        if not literal.done:
            said += literal.take(char)[0]
    assert (literal.done, literal.wrong) == (True, False)
    assert json.loads(said) == value


@pytest.mark.parametrize(
    "text", ["[,]", "[1 2]", "{1: 2}", "{'a' 1}", "nope", "1.2.3", "--1", "'\\xzz'", "]", "{'a'}",
             "[" * 200, "1" * 500, "'\\U99999999'", "٣", "1e", "."]
)  # fmt: skip
def test_what_is_no_value_is_wrong(text: str) -> None:
    literal = Literal()
    for char in f"{text} ":
        literal.take(char)
        if literal.wrong:
            return
    pytest.fail("taken for a value")


# -- choice of the format -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "models", "kind"),
    [
        ("... <tool_call> ...", (), Hermes),
        ("... [TOOL_CALLS] ...", ("qwen",), Mistral),
        ("... <|python_tag|> ...", (), Llama3),
        ("<|python_start|> [func_name1(params_name1=1)]", (), Pythonic),
        ("", ("/models/Meta-Llama-3.1-8B-Instruct",), Llama3),
        ("", ("/models/x", "MistralForCausalLM"), Mistral),
        ("", ("/models/x", "Qwen2ForCausalLM"), Hermes),
        ("", ("/models/x", "Llama4ForConditionalGeneration"), Pythonic),
        ("", ("sglang-tiny",), Tiny),
        ("", ("/models/unknown", "LlamaForCausalLM"), Hermes),
    ],
)
def test_auto_goes_by_template_then_model(
    template: str, models: tuple[str, ...], kind: type
) -> None:
    assert type(format_for("auto", template, *models)) is kind
    assert type(format_for("pythonic", template, *models)) is Pythonic


def test_the_flag_names_every_format() -> None:
    assert set(TOOL_CALL_PARSERS) == {"auto", *FORMATS}
    newer, older = format_for("mistral", "[TOOL_CALLS][ARGS]"), format_for("mistral", "")
    assert isinstance(newer, Mistral)
    assert isinstance(older, Mistral)
    assert (newer.by_name, older.by_name) == (True, False)


@pytest.mark.parametrize("name", FORMS)
def test_the_model_is_told_of_the_tools(name: str) -> None:
    form = FORMS[name]
    text = form.introduction(TOOLS)
    assert all(tool.name in text for tool in TOOLS)
    for made in (form.calls(TOOLS, True), form.tagged(TOOLS)):
        constraint_of(made).verify()
    result = {"role": "tool", "content": "3"}
    assert "3" in form.result(result)["content"]
