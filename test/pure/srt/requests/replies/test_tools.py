"""Tools of a chat: the model's prompt and constraint, and how its text is read."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from helpers.http_server import is_error
from helpers.scripted import Scripted, posted
from helpers.toy_tokenizer import byte_level
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.ir.constraint import Constraint
from sglang.semantics.tool_calls.tool_format import Tool, constraint_of, either, schema
from sglang.semantics.tool_calls.tool_formats.hermes import END, Hermes
from sglang.srt.requests.completion.output import Finish
from sglang.srt.requests.replies.schema_check import first_fault
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.conversations.tool_use import read_tools, with_tools
from sglang.srt.tokenizer import Tokenizer

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


KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=4)


def tools(*given: dict[str, Any]) -> tuple[Tool, ...]:
    use = read_tools(list(given), None, None)
    assert use is not None
    return use.tools


# -- fields of a request --------------------------------------------------------------------------


def test_choices_of_tools() -> None:
    given = [WEATHER, ADD]
    for choice, parallel, names, required, many in (
        (None, None, ["get_weather", "add"], False, True),
        ("auto", False, ["get_weather", "add"], False, False),
        ("required", True, ["get_weather", "add"], True, True),
        ("required", False, ["get_weather", "add"], True, False),
        ({"type": "function", "function": {"name": "add"}}, True, ["add"], True, False),
        ({"type": "function", "name": "add"}, True, ["add"], True, False),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [ADD]}},
            None,
            ["add"],
            False,
            True,
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [ADD, WEATHER]},
            True,
            ["add", "get_weather"],
            True,
            True,
        ),
    ):
        use = read_tools(given, choice, parallel)
        assert use is not None
        assert ([tool.name for tool in use.tools], use.required, use.many) == (
            names, required, many,
        )  # fmt: skip
        assert [tool.name for tool in use.shown] == ["get_weather", "add"]
    empty: list[Any] = [None, []]
    for nothing in empty:
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
    ([ADD], {"type": "allowed_tools"}, 'tool_choice must be {"type": "allowed_tools"'),
    ([ADD], {"type": "allowed_tools", "mode": "none", "tools": [ADD]}, "tool_choice must be"),
    ([ADD], {"type": "allowed_tools", "mode": "auto", "tools": []}, "tool_choice must be"),
    ([ADD], {"type": "allowed_tools", "mode": "auto", "tools": [WEATHER]}, "tool_choice names"),
    ([ADD], {"type": "allowed_tools", "mode": "auto", "tools": [5]}, "tool_choice must be"),
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


@pytest.mark.slow
@given(JSON)
def test_any_json_has_a_fault_or_none(value: Any) -> None:
    first_fault(value)
    first_fault({"properties": {"a": value}, "items": value, "anyOf": [value], "type": value})


@pytest.mark.parametrize(
    "pattern", [r"^\p{L}+$", r"(?<name>a)", r"[^]", r"\/", r"\cA", "a{,5}", r"(?<=a+)b", "[]a]"]
)
def test_patterns_of_other_dialects_are_let_pass(pattern: str) -> None:
    assert first_fault({"pattern": pattern}) == ""


@pytest.mark.slow
@given(JSON, JSON, st.sampled_from([None, "type", "function", "name", "parameters", "strict"]))
@settings(max_examples=300)
def test_any_json_for_tools_is_read_or_refused(a: Any, b: Any, at: str | None) -> None:
    """Any value in any field raises nothing but a RequestError."""
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
                use.form(None)
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
    assert choice["message"] == {
        "role": "assistant", "content": "Hello.", "refusal": None, "reasoning_content": None,
    }  # fmt: skip


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
        assert scripted.requests[-1].sampling.constraint is None


@pytest.mark.parametrize("piece", [1, 3, 1000])
@pytest.mark.parametrize("reason", ["stop", "length", "error"])
def test_calls_in_a_stream(scripted: Scripted, piece: int, reason: str) -> None:
    scripted.text, scripted.piece = f"I look.\n{CALL}\n{CALL} so", piece
    scripted.finish = Finish(reason)
    choices = streamed(scripted, logprobs=False)
    assert choices[0]["delta"] == {
        "role": "assistant", "content": "", "reasoning_content": None,
    }  # fmt: skip
    assert choices[-1]["finish_reason"] == ("tool_calls" if reason == "stop" else reason)
    assert choices[-1]["delta"] == {"reasoning_content": None}
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
        return scripted.requests[-1].sampling.constraint

    def calls(given: Sequence[Tool], many: bool) -> Constraint:
        return constraint_of(Hermes().calls(given, many))

    both, named = tools(WEATHER, ADD), {"type": "function", "function": {"name": "add"}}
    assert asked() is None
    assert asked(tool_choice="required") == calls(both, True)
    assert asked(tool_choice="required", parallel_tool_calls=False) == calls(both, False)
    assert asked(tool_choice=named) == calls((both[1],), False)
    strict = function(strict=True, parameters=PARAMETERS)
    assert asked(tools=[strict]) == constraint_of(Hermes().tagged(tools(strict)))
    answer = {"response_format": {"type": "json_object"}}
    assert asked(**answer) == constraint_of(
        either(Hermes().calls(both, True), schema({"type": "object"}))
    )
    assert asked(**answer, tool_choice="required") == calls(both, True)  # clients send both
    assert asked(**answer, tool_choice="none") == Constraint("json_schema", '{"type":"object"}')
    error = is_error(posted(scripted, "/v1/chat/completions", {**CHAT, "regex": "a"}), 400)
    assert (error["param"], "regex cannot be given with tools" in error["message"]) == (
        "tools", True,
    )  # fmt: skip


def test_a_tag_that_is_a_control_token_is_not_hidden(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat(scripted)
    assert scripted.requests[-1].sampling.skip_special_tokens
    special = min(scripted.tokenizer.special_ids)
    monkeypatch.setattr(scripted.tokenizer, "id_of", lambda text: special if text == END else None)
    chat(scripted)
    assert not scripted.requests[-1].sampling.skip_special_tokens


def test_tools_reach_the_prompt(scripted: Scripted) -> None:
    chat(scripted, messages=[*CHAT["messages"], CALLED, RESULT])
    prompt = scripted.prompts[-1]
    assert json.dumps(WEATHER) in prompt
    assert '{"name": "add", "arguments": {"a": 1}}' in prompt
    assert "<|im_start|>tool\n3" in prompt


@pytest.mark.parametrize("stream", [False, True])
def test_the_engines_refusal_names_the_tool(scripted: Scripted, stream: bool) -> None:
    named = {"type": "function", "function": {"name": "add"}}
    strict = [function(name=name, strict=True) for name in ("f", "g")]
    pointer = "structural_tag at /format{}/tags/{}/content/json_schema/properties/a: no"
    answer = {"response_format": {"type": "json_object"}}
    for fields, message, place in (
        ({"tool_choice": named}, pointer.format("", 0), 1),
        ({"tool_choice": "required"}, pointer.format("", 1), 1),
        (answer, pointer.format("/elements/0", 0), 0),
        ({"tools": strict}, pointer.format("", 1), 1),
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


def test_what_a_limit_cuts_of_a_call_is_no_text(scripted: Scripted) -> None:
    scripted.finish = Finish("length")
    for text, tool_choice, content in (
        (f"{CALL}\n<tool_", "auto", None),
        ('Wait <tool_call>\n{"name": "get_w', "auto", "Wait"),
        ('<tool_call>\n{"name": "get_w', "required", ""),
        ("<tool_", "required", ""),
        ("a <", "auto", "a <"),
    ):
        scripted.text = text
        (choice,) = chat(scripted, tool_choice=tool_choice)["choices"]
        assert (choice["message"]["content"] or "").strip() == (content or "")
        shown = "".join(c["delta"].get("content") or "" for c in
                        streamed(scripted, tool_choice=tool_choice))  # fmt: skip
        assert shown.strip() == (content or "")
        assert choice["finish_reason"] == "length"
    scripted.finish = Finish("stop")
    scripted.text = 'Wait <tool_call>\n{"name": "get_w'
    assert chat(scripted)["choices"][0]["message"]["content"] == scripted.text


# -- the legacy fields ----------------------------------------------------------------------------


def test_functions_are_answered_with_a_function_call(scripted: Scripted) -> None:
    fields = {"tools": None, "functions": [ADD["function"], WEATHER["function"]]}
    scripted.text = CALL
    (choice,) = chat(scripted, **fields)["choices"]
    assert choice["finish_reason"] == "function_call"
    called = {"name": "get_weather", "arguments": '{"city": "Köln"}'}
    assert choice["message"]["function_call"] == called
    assert "tool_calls" not in choice["message"]
    found = {"name": "", "arguments": ""}
    for each in (choices := streamed(scripted, **fields)):
        for key, value in (each["delta"].get("function_call") or {}).items():
            found[key] += value
    assert (found, choices[-1]["finish_reason"]) == (called, "function_call")
    chat(scripted, **fields, function_call={"name": "add"})
    named = constraint_of(Hermes().calls(tools(ADD), False))
    assert scripted.requests[-1].sampling.constraint == named
    chat(scripted, **fields, function_call="none")
    assert "<tools>" not in scripted.prompts[-1]
    past = {"role": "assistant", "content": None,
            "function_call": {"name": "add", "arguments": '{"a": 1}'}}  # fmt: skip
    result = {"role": "function", "name": "add", "content": "3"}
    chat(scripted, **fields, messages=[*CHAT["messages"], past, result])
    assert '{"name": "add", "arguments": {"a": 1}}' in scripted.prompts[-1]
    assert "<|im_start|>tool\n3" in scripted.prompts[-1]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"functions": [{"name": "a b"}], "tools": None}, "functions", "functions[0].name is"),
        ({"functions": [{"name": "f"}]}, "functions", "exclude one another"),
        ({"function_call": "auto"}, "function_call", "exclude one another"),
        ({"functions": [{"name": "f"}], "tools": None, "function_call": {"name": "g"}},
         "function_call", "function_call names 'g'"),
    ],
)  # fmt: skip
def test_legacy_fields_that_are_wrong(
    scripted: Scripted, fields: dict[str, Any], param: str, words: str
) -> None:
    error = is_error(posted(scripted, "/v1/chat/completions", {**CHAT, **fields}), 400)
    assert (error["param"], words in error["message"]) == (param, True), error


# -- other features of a chat ---------------------------------------------------------------------


def test_parts_of_messages_that_are_text(scripted: Scripted) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"},
             {"type": "output_text", "text": "c"}, {"type": "refusal", "refusal": "d"}]  # fmt: skip
    chat(scripted, messages=[{"role": "user", "content": parts}], tools=None)
    assert "user\nabcd<" in scripted.prompts[-1]
    for part in ({"type": "text"}, {"type": "refusal", "text": "x"}, {"type": "image_url"}, 5):
        body = {"messages": [{"role": "user", "content": [part]}]}
        error = is_error(posted(scripted, "/v1/chat/completions", body), 400)
        assert error["param"] == "messages"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 0, "max_tokens": 5}, "max_completion_tokens"),
        ({"logprobs": True, "top_logprobs": 129}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"messages": [CALLED], "continue_final_message": True}, "continue_final_message"),
        ({"reasoning_effort": "huge"}, "reasoning_effort"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice"),
    ],
)
def test_the_field_at_fault_is_named(
    scripted: Scripted, fields: dict[str, Any], param: str
) -> None:
    error = is_error(posted(scripted, "/v1/chat/completions", {**CHAT, **fields}), 400)
    assert error["param"] == param, error


def test_several_completions_have_calls_of_their_own(scripted: Scripted) -> None:
    scripted.text = f"{CALL}\n{CALL}"
    for choice in chat(scripted, n=3)["choices"]:
        assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == [
            "get_weather", "get_weather",
        ]  # fmt: skip
    begun = [
        (choice["index"], call["index"])
        for choice in streamed(scripted, n=3)
        for call in choice["delta"].get("tool_calls", ())
        if "id" in call
    ]
    assert sorted(begun) == [(i, call) for i in range(3) for call in range(2)]


def test_a_message_is_continued_with_tools(scripted: Scripted) -> None:
    said = {"role": "assistant", "content": "I will call"}
    scripted.text = f" it.\n{CALL}"
    answer = chat(
        scripted, messages=[*CHAT["messages"], said], continue_final_message=True
    )["choices"][0]["message"]  # fmt: skip
    assert scripted.prompts[-1].endswith("<|im_start|>assistant\nI will call")
    assert (answer["content"], len(answer["tool_calls"])) == (" it.", 1)


def test_usage_with_every_chunk(scripted: Scripted) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    scripted.text = CALL
    body = {**CHAT, "stream": True, "stream_options": options}
    lines = posted(scripted, "/v1/chat/completions", body).text.split("\n\n")
    chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert (counts[-1], chunks[-1]["choices"]) == (len(CALL), [])
