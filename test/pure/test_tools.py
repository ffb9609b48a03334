"""Tools of a chat: what is asked of the model, and how its text is read."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.http_server import is_error
from helpers.scripted import Scripted, pieces, posted
from helpers.toy_tokenizer import byte_level
from hypothesis import example, given, settings
from hypothesis import strategies as st
from srt.core.constraint import Constraint
from srt.program.deltas import Arguments, Begin, joined
from srt.program.output import Finish
from srt.program.request import RequestError
from srt.program.schema_check import first_fault
from srt.program.tool_parser import BEGIN, END, HermesParser
from srt.program.tools import Hermes, Tool
from srt.server.tools import read_tools, with_tools
from srt.tokenizer import Tokenizer

NAMES = ("add", "get_weather")
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "get_weather", "description": "Weather", "parameters": PARAMETERS},
}
ADD: dict[str, Any] = {"type": "function", "function": {"name": "add"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}], "tools": [WEATHER, ADD]}


def function(**fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **fields}}


# -- the parser -----------------------------------------------------------------------------------


def parsed(parts: list[str]) -> tuple[str, list[tuple[str, str]]]:
    parser = HermesParser(NAMES)
    deltas = [delta for part in parts for delta in parser.feed(part)]
    return joined([*deltas, *parser.finish()])


GIVEN: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("", "", []),
    (" plain \n", " plain \n", []),
    (CALL, "", [("get_weather", '{"city": "Köln"}')]),
    (f"\n {CALL} \n", "", [("get_weather", '{"city": "Köln"}')]),
    (f"I look.\n\n{CALL}\n{CALL}", "I look.", [("get_weather", '{"city": "Köln"}')] * 2),
    (f"a{CALL}b", "ab", [("get_weather", '{"city": "Köln"}')]),
    (f"a {CALL} b", "a b", [("get_weather", '{"city": "Köln"}')]),
    ('<tool_call>{"arguments":{"a":[1,{"b":"}"}]},"name":"add"}</tool_call>', "",
     [("add", '{"a":[1,{"b":"}"}]}')]),
    ('<tool_call>{"name":"add"}</tool_call>', "", [("add", "{}")]),
    ('<tool_call>{"id":-1.5e3, "x": null,"name":"add","arguments":{"s":"\\"}\\\\"},"y":[1]}', "",
     [("add", '{"s":"\\"}\\\\"}')]),
    ('<tool_call>{"name":"\\u0061dd","arguments":{}}</tool_call>', "", [("add", "{}")]),
    ('<tool_call>{"name":"add","arguments":{"a": 1', "", [("add", '{"a": 1')]),  # cut off
    (f"{CALL[:-3]}", "", [("get_weather", '{"city": "Köln"}')]),
    ('<tool_call>{"name":"add","argum', '<tool_call>{"name":"add","argum', []),
    ('<tool_call>{"name":"rm","arguments":{}}</tool_call>',
     '<tool_call>{"name":"rm","arguments":{}}</tool_call>', []),
    ('<tool_call>{"name":"add","arguments":"{}"}</tool_call>',
     '<tool_call>{"name":"add","arguments":"{}"}</tool_call>', []),
    ('<tool_call>[{"name":"add"}]</tool_call>', '<tool_call>[{"name":"add"}]</tool_call>', []),
    ("the <tool_call> tag, </tool_call>", "the <tool_call> tag, </tool_call>", []),
    (f"<tool_<tool_call{CALL}", "<tool_<tool_call", [("get_weather", '{"city": "Köln"}')]),
    (f"<tool_call>{CALL}", "<tool_call>", [("get_weather", '{"city": "Köln"}')]),
    ('<tool_call>{"name":"add","arguments":{}}<tool_call>{"name":"add","arguments":{}}', "",
     [("add", "{}")] * 2),
    ('<tool_call>{"name":"add","name":"add","arguments":{}}</tool_call>',
     '<tool_call>{"name":"add","name":"add","arguments":{}}</tool_call>', []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words", "calls"), GIVEN)
def test_what_a_text_says(text: str, words: str, calls: list[tuple[str, str]]) -> None:
    assert parsed([text]) == (words, calls)
    assert parsed(list(text)) == (words, calls)


FRAGMENTS = st.sampled_from(
    [BEGIN, END, "\n", " ", "{", "}", '"', "\\", ",", ":", '{"name": ', '"add"', '"rm"', CALL,
     ', "arguments": ', '{"a": "b"}', "[", "]", "1", "word", "<tool", "<", "é", '"arguments"']
)  # fmt: skip
TEXTS = st.lists(FRAGMENTS, max_size=14).map("".join)
CUTS = st.lists(st.integers(0, 1000), max_size=12)


@given(TEXTS, CUTS)
@settings(max_examples=400)
@example('<tool_call>{"name":"add","arguments":{"a":"</tool_call>"}} <tool_call>', [3, 40])
def test_the_chunks_do_not_matter(text: str, cuts: list[int]) -> None:
    assert parsed(pieces(text, cuts)) == parsed([text])


@given(TEXTS, CUTS)
def test_deltas_are_in_order(text: str, cuts: list[int]) -> None:
    """A call begins before its arguments, calls are numbered in turn, and none goes on later."""
    parser = HermesParser(NAMES)
    deltas = [delta for part in pieces(text, cuts) for delta in parser.feed(part)]
    last = -1
    for delta in [*deltas, *parser.finish()]:
        if isinstance(delta, Begin):
            assert (delta.call, delta.name in NAMES) == (last + 1, True)
            last = delta.call
        elif isinstance(delta, Arguments):
            assert delta.call == last
            assert delta.text
        else:
            assert delta.text


@given(TEXTS.filter(lambda text: BEGIN not in text))
def test_text_without_a_call_is_left_as_it_is(text: str) -> None:
    assert parsed([text]) == (text, [])


KEYS = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=4)


@given(st.lists(st.tuples(st.sampled_from(NAMES), OBJECTS), max_size=3), CUTS)
def test_what_is_written_is_read_back(
    calls: list[tuple[str, dict[str, Any]]], cuts: list[int]
) -> None:
    text = Hermes().written(calls)
    words, found = parsed(pieces(text, cuts))
    assert words == ""
    assert [(name, json.loads(arguments)) for name, arguments in found] == calls


def test_hostile_text_costs_little() -> None:
    """One step a character: nothing is read again and again."""
    steps = 0
    for part in ('<tool_call>{"a":[', " ", "<tool_call>", '{"name": "add", "arguments": {"a": "x'):
        parser = HermesParser(NAMES)
        text = part * 2000
        between = parser._between

        def counted(char: str) -> None:
            nonlocal steps
            steps += 1
            between(char)  # noqa: B023

        parser._between = counted  # type: ignore[method-assign]
        parser.feed(text)
        parser.finish()
    assert steps < 2000 * 200


# -- the constraint -------------------------------------------------------------------------------


def tools(*given: dict[str, Any]) -> tuple[Tool, ...]:
    use = read_tools(list(given), None, None)
    assert use is not None
    return use.tools


def test_calls_as_a_constraint() -> None:
    constraint = Hermes().calls(tools(WEATHER, ADD), False)
    constraint.verify()
    form = json.loads(constraint.text)["format"]
    assert (form["type"], form["at_least_one"], form["stop_after_first"]) == (
        "tags_with_separator", True, True,
    )  # fmt: skip
    tag = form["tags"][0]
    text = tag["begin"] + '{"city": "Rom"}' + tag["end"]
    assert parsed([text]) == ("", [("get_weather", '{"city": "Rom"}')])
    assert tag["content"]["json_schema"] == PARAMETERS
    assert form["tags"][1]["content"]["json_schema"] == {"type": "object", "properties": {}}
    both = json.loads(Hermes().calls(tools(ADD), True, {"type": "integer"}).text)["format"]
    assert [element["type"] for element in both["elements"]] == [
        "tags_with_separator", "json_schema",
    ]  # fmt: skip


def test_strict_tools_are_held_to_their_schema_wherever_they_are_called() -> None:
    strict = function(strict=True, parameters=PARAMETERS)
    tag = json.loads(Hermes().tagged(tools(WEATHER, strict)).text)
    assert tag["triggers"] == [BEGIN]
    assert [one["schema"] for one in tag["structures"]] == [{"type": "object"}, PARAMETERS]


# -- what a request says --------------------------------------------------------------------------


def test_choices_of_tools() -> None:
    given = [WEATHER, ADD]
    for choice, parallel, names, required, many in (
        (None, None, ["get_weather", "add"], False, True),
        ("auto", False, ["get_weather", "add"], False, False),
        ("required", True, ["get_weather", "add"], True, True),
        ("required", False, ["get_weather", "add"], True, False),
        ({"type": "function", "function": {"name": "add"}}, True, ["add"], True, False),
    ):
        use = read_tools(given, choice, parallel)
        assert use is not None
        assert ([tool.name for tool in use.tools], use.required, use.many) == (
            names, required, many,
        )  # fmt: skip
        assert [tool.name for tool in use.shown] == ["get_weather", "add"]
    for nothing in (None, []):
        assert read_tools(nothing, None, None) is None
    assert read_tools(given, "none", None) is None


BAD: list[tuple[Any, Any, str]] = [
    ([5], None, "tools[0].type is 5"),
    ([WEATHER, {"type": "retrieval"}], None, "tools[1].type is 'retrieval'"),
    ([{"type": "function"}], None, "tools[0].function is missing"),
    ([function(name="a b")], None, "tools[0].function.name is 'a b'"),
    ([function(name="a" * 65)], None, "tools[0].function.name is 'aaa"),
    ([function(name=None)], None, "tools[0].function.name is None"),
    ([function(name="add\n")], None, "tools[0].function.name is 'add\\n'"),
    ([WEATHER, WEATHER], None, "tools[1] is the second one named 'get_weather'"),
    ([function(description=5)], None, "tools[0].function.description is 5"),
    ([function(strict="yes")], None, "tools[0].function.strict is 'yes'"),
    ([function(parameters=[])], None, "tools[0].function.parameters is []"),
    ([ADD, function(parameters={"type": "array"})], None, "tools[1].function.parameters: /type is"),
    ([function(parameters={"type": "objekt"})], None, "/type is 'objekt'"),
    ([function(parameters={"properties": {"a": {"type": 5}}})], None, "/properties/a/type is 5"),
    ([function(parameters={"properties": {"a": {"type": ["string", "int"]}}})], None,
     "/properties/a/type is ['string', 'int']"),
    ([function(parameters={"properties": {"a": {"pattern": "["}}})], None,
     "/properties/a/pattern is '['"),
    ([function(parameters={"properties": {"a": {"items": {"pattern": 5}}}})], None,
     "/properties/a/items/pattern is 5"),
    ([function(parameters={"properties": []})], None, "/properties is []"),
    ([function(parameters={"required": "a"})], None, "/required is 'a'"),
    ([function(parameters={"allOf": {}})], None, "/allOf is {}"),
    ([function(parameters={"$defs": {"a": {"anyOf": [True, 3]}}})], None, "/$defs/a/anyOf/1 is 3"),
    ([ADD] * 200, None, "tools has 200 entries; at most 128"),
    ({}, "required", "tool_choice is given without tools"),
    ("add", None, "tools must be a list"),
    ([ADD], "always", "tool_choice is 'always'"),
    ([ADD], {"type": "function", "function": {"name": "sub"}}, "tool_choice names 'sub'"),
    ([ADD], {"type": "allowed_tools"}, "tool_choice must be"),
    ([ADD], {"type": "function"}, "tool_choice must be"),
]  # fmt: skip


@pytest.mark.parametrize(("given_tools", "choice", "words"), BAD)
def test_what_is_wrong_is_named(given_tools: Any, choice: Any, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        read_tools(given_tools, choice, None)
    assert words in caught.value.message
    assert caught.value.param == ("tool_choice" if words.startswith("tool_choice") else "tools")


def test_a_schema_nested_deep_is_no_trouble() -> None:
    deep: Any = {}
    for _ in range(20_000):
        deep = {"not": deep}
    assert first_fault(deep) == ""


@given(JSON)
def test_any_json_has_a_fault_or_none(value: Any) -> None:
    first_fault(value)
    first_fault({"properties": {"a": value}, "items": value, "anyOf": [value], "type": value})


@pytest.mark.parametrize(
    "pattern", [r"^\p{L}+$", r"(?<name>a)", r"[^]", r"\/", r"\cA", "a{,5}", r"(?<=a+)b", "[]a]"]
)
def test_patterns_of_other_dialects_are_let_pass(pattern: str) -> None:
    assert first_fault({"pattern": pattern}) == ""


@given(JSON, JSON, st.sampled_from([None, "type", "function", "name", "parameters", "strict"]))
@settings(max_examples=300)
def test_any_json_for_tools_is_read_or_refused(a: Any, b: Any, at: str | None) -> None:
    """Whatever stands at whatever place, nothing but a RequestError comes of it."""
    given_tool = json.loads(json.dumps(WEATHER))
    if at in given_tool:
        given_tool[at] = a
    elif at is not None:
        given_tool["function"][at] = a
    choices = (None, "required", b, {"type": "function", "function": b})
    for given_tools, choice in itertools.product((a, [a], [given_tool, b], [given_tool]), choices):
        with suppress(RequestError):
            use = read_tools(given_tools, choice, None)
            if use is not None:
                use.constraint(None)
    for calls in (a, [a], [{"function": a}], [{"function": {"name": "f", "arguments": a}}]):
        with suppress(RequestError):
            with_tools([{**CALLED, "tool_calls": calls}], KNOWS, None)


# -- the conversation -----------------------------------------------------------------------------

CALLED: dict[str, Any] = {
    "role": "assistant", "content": "",
    "tool_calls": [{"id": "call_1", "type": "function",
                    "function": {"name": "add", "arguments": '{"a": 1}'}}],
}  # fmt: skip
RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "3"}
KNOWS = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.tool_calls }}"


def test_a_template_that_knows_tools_is_given_them() -> None:
    use = read_tools([ADD], None, None)
    told, variables = with_tools([{"role": "user", "content": "Hi"}, CALLED, RESULT], KNOWS, use)
    assert variables == {"tools": [ADD]}
    assert told[1]["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}
    assert told[1]["tool_calls"][0]["id"] == "call_1"
    assert told[2] == RESULT
    assert with_tools([CALLED], KNOWS, None)[1] == {}


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_another_template_is_given_text(system: str | None) -> None:
    use = read_tools([ADD], None, None)
    messages = [{"role": "user", "content": "Hi"}, {**CALLED, "content": "I add."}, RESULT]
    if system:
        messages.insert(0, {"role": "system", "content": system})
    told, variables = with_tools(messages, "{{ messages }}", use)
    assert variables == {}
    assert [m["role"] for m in told] == ["system", "user", "assistant", "tool"]
    assert told[0]["content"].startswith(system or "You may call")
    assert json.dumps(ADD) in told[0]["content"]
    assert told[2] == {
        "role": "assistant",
        "content": 'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
    }


@pytest.mark.parametrize(
    ("calls", "words"),
    [
        ("x", "messages[0].tool_calls must be a list"),
        ([5], "messages[0].tool_calls[0].function.name is missing"),
        ([{"function": {"name": "a", "arguments": "{"}}], "tool_calls[0].function.arguments is"),
        ([{"function": {"name": "a", "arguments": "[1]"}}], "tool_calls[0].function.arguments is"),
    ],
)
def test_bad_calls_in_the_conversation(calls: Any, words: str) -> None:
    with pytest.raises(RequestError) as caught:
        with_tools([{**CALLED, "tool_calls": calls}], KNOWS, None)
    assert words in caught.value.message


# -- the route ------------------------------------------------------------------------------------


@pytest.fixture
def scripted(tmp_path: Path) -> Scripted:
    return Scripted(Tokenizer(byte_level(tmp_path)))


def chat(scripted: Scripted, **fields: Any) -> dict[str, Any]:
    reply = posted(scripted, "/v1/chat/completions", {**CHAT, **fields})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def streamed(scripted: Scripted, **fields: Any) -> list[dict[str, Any]]:
    reply = posted(scripted, "/v1/chat/completions", {**CHAT, **fields, "stream": True})
    assert reply.status_code == 200, reply.text
    lines = [line for line in reply.text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line[6:])["choices"][0] for line in lines]


def test_calls_in_an_answer(scripted: Scripted) -> None:
    scripted.text = f"I look.\n{CALL}"
    (choice,) = chat(scripted)["choices"]
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "I look."
    (call,) = message["tool_calls"]
    assert call["id"].startswith("call_")
    assert call["type"] == "function"
    assert call["function"] == {"name": "get_weather", "arguments": '{"city": "Köln"}'}
    scripted.text = CALL
    assert chat(scripted, n=2)["choices"][1]["message"]["content"] is None
    scripted.text = "Hello."
    (choice,) = chat(scripted)["choices"]
    assert choice["finish_reason"] == "stop"
    assert choice["message"] == {"role": "assistant", "content": "Hello.", "refusal": None}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (CALL[:CALL.index("K")], "stop"),
        (f"{CALL}\n{CALL[: CALL.index('K')]}", "stop"),
        (CALL[: CALL.index("\n</tool_call>")], "tool_calls"),
        (CALL[: CALL.rindex("}")], "tool_calls"),
    ],
)  # fmt: skip
def test_a_call_that_a_stop_cuts_is_not_called_whole(
    scripted: Scripted, text: str, reason: str
) -> None:
    scripted.text = text
    assert chat(scripted)["choices"][0]["finish_reason"] == reason
    assert streamed(scripted)[-1]["finish_reason"] == reason


def test_without_a_call_to_make_the_text_is_left_alone(scripted: Scripted) -> None:
    scripted.text = CALL
    for fields in ({"tool_choice": "none"}, {"tools": None}):
        (choice,) = chat(scripted, **fields)["choices"]
        assert choice["message"]["content"] == CALL
        assert choice["finish_reason"] == "stop"
        assert "<tools>" not in scripted.prompts[-1]
        assert scripted.asks[-1].sampling.constraint is None


@pytest.mark.parametrize("piece", [1, 3, 1000])
@pytest.mark.parametrize("reason", ["stop", "length", "error"])
def test_calls_in_a_stream(scripted: Scripted, piece: int, reason: str) -> None:
    scripted.text, scripted.piece = f"I look.\n{CALL}\n{CALL} so", piece
    scripted.finish = Finish(reason)
    choices = streamed(scripted, logprobs=False)
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    assert choices[-1]["finish_reason"] == ("tool_calls" if reason == "stop" else reason)
    assert not choices[-1]["delta"]
    text, calls = "", list[dict[str, Any]]()
    for choice in choices[1:-1]:
        text += choice["delta"].get("content") or ""
        for delta in choice["delta"].get("tool_calls", ()):
            if delta["index"] == len(calls):
                assert (delta["type"], delta["function"]["arguments"]) == ("function", "")
                calls.append(delta["function"])
                assert delta["id"].startswith("call_")
            else:
                assert set(delta) == {"index", "function"}
                calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    assert text == "I look. so"
    assert calls == [{"name": "get_weather", "arguments": '{"city": "Köln"}'}] * 2


def test_what_the_engine_is_asked_for(scripted: Scripted) -> None:
    def asked(**fields: Any) -> Constraint | None:
        chat(scripted, **fields)
        return scripted.asks[-1].sampling.constraint

    both, named = tools(WEATHER, ADD), {"type": "function", "function": {"name": "add"}}
    form = Hermes()
    assert asked() is None
    assert asked(tool_choice="required") == form.calls(both, True)
    assert asked(tool_choice="required", parallel_tool_calls=False) == form.calls(both, False)
    assert asked(tool_choice=named) == form.calls((both[1],), False)
    strict = function(strict=True, parameters=PARAMETERS)
    assert asked(tools=[strict]) == form.tagged(tools(strict))
    answer = {"response_format": {"type": "json_object"}}
    assert asked(**answer) == form.calls(both, True, {"type": "object"})
    assert asked(**answer, tool_choice="required") == form.calls(both, True)
    assert asked(**answer, tool_choice="none") == Constraint("json_schema", '{"type":"object"}')
    error = is_error(posted(scripted, "/v1/chat/completions", {**CHAT, "regex": "a"}), 400)
    assert (error["param"], "regex cannot be given with tools" in error["message"]) == (
        "tools", True,
    )  # fmt: skip


def test_a_tag_that_is_a_control_token_is_not_hidden(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat(scripted)
    assert scripted.asks[-1].sampling.skip_special_tokens
    special = min(scripted.tokenizer.special_ids)
    monkeypatch.setattr(scripted.tokenizer, "id_of", lambda text: special if text == END else None)
    chat(scripted)
    assert not scripted.asks[-1].sampling.skip_special_tokens


def test_tools_reach_the_prompt(scripted: Scripted) -> None:
    chat(scripted, messages=[*CHAT["messages"], CALLED, RESULT])
    prompt = scripted.prompts[-1]
    assert json.dumps(WEATHER) in prompt
    assert '{"name": "add", "arguments": {"a": 1}}' in prompt
    assert "<|im_start|>tool\n3" in prompt


@pytest.mark.parametrize("stream", [False, True])
def test_the_engines_refusal_names_the_tool(scripted: Scripted, stream: bool) -> None:
    named = {"type": "function", "function": {"name": "add"}}
    pointer = "json_schema at /format/tags/0/content/json_schema/properties/a: no"
    for fields, message, place in (
        ({"tool_choice": named}, pointer, 1),
        ({"tool_choice": "required"}, pointer, 0),
        ({}, pointer.replace("/format", "/format/elements/0"), 0),
        ({}, "structural_tag at /structures/1/schema/properties/a: no", 1),
    ):
        scripted.refuse = RequestError(message)
        body = {**CHAT, **fields, "stream": stream}
        error = is_error(posted(scripted, "/v1/chat/completions", body), 400)
        assert f"tools[{place}].function.parameters/properties/a: no" in error["message"]
        assert error["param"] == "tools"
    scripted.refuse = RequestError("structural_tag takes too long", "structural_tag")
    assert is_error(posted(scripted, "/v1/chat/completions", CHAT), 400)["param"] == "tools"
    scripted.refuse = RequestError("other")
    assert is_error(posted(scripted, "/v1/chat/completions", CHAT), 400)["message"] == "other"


def test_tools_that_are_too_large(scripted: Scripted) -> None:
    large = function(parameters={"enum": ["x" * 1000] * 300})
    error = is_error(
        posted(scripted, "/v1/chat/completions",
               {**CHAT, "tools": [large], "tool_choice": "required"}),
        400,
    )  # fmt: skip
    assert error["message"].startswith("tools, written as structural_tag has ")
