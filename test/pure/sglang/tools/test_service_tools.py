"""Gens with tools over the APIs of services: their own fields for tools, calls and results."""

from __future__ import annotations

import json
from typing import Any

import pytest
import sglang as sgl
from helpers.fake_anthropic import FakeAnthropic
from helpers.fake_openai import FakeOpenAI
from sglang.backend.openai.tool_fields import grown_calls

CALLS = [("a1", "add", {"a": 1, "b": 4}), ("a2", "shout", {"text": "hi"})]
ADD = {
    "name": "add",
    "description": "Sum.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
}


def add(a: int, b: int) -> int:
    """Sum."""
    return a + b


def shout(text: str, mark: str = "!") -> str:
    return text.upper() + mark


@sgl.function
def ask(s: Any, choice: Any = None) -> str:
    s += sgl.system("Be brief.") + sgl.user("What?")
    s += sgl.assistant(sgl.gen("x", tools=[add, shout], tool_choice=choice))
    s += sgl.user("And?") + sgl.assistant(sgl.gen("y"))
    return str(s["x"])


def openai_reply(content: str | None = None) -> dict[str, Any]:
    made = [
        {"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
        for i, n, a in CALLS
    ]
    return {"content": content, "tool_calls": made, "finish_reason": "tool_calls"}


def verify(state: Any) -> None:
    assert state.ret_value == "It is 5."
    assert [(c["id"], c["name"], c["arguments"]) for c in state["x_calls"]] == CALLS
    assert [call.value for call in state.value("x_calls")] == [5, "HI!"]
    assert [m["role"] for m in state.messages()] == [
        "system", "user", "assistant", "tool", "tool", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert state["y"] == "Bye."


@pytest.mark.parametrize("stream", [False, True])
def test_chat_completions(stream: bool) -> None:
    with FakeOpenAI([openai_reply("Let me see."), "It is 5.", "Bye."]) as service:
        backend = sgl.OpenAI("gpt-4o", base_url=service.url, api_key="k")
        state = ask.run(choice=add, backend=backend, stream=stream)
        state.sync()
        verify(state)
        backend.shutdown()
    first, second, third = service.bodies
    assert first["tools"][0] == {"type": "function", "function": ADD}
    assert first["tool_choice"] == {"type": "function", "function": {"name": "add"}}
    assert "tool_choice" not in second
    assert third["tool_choice"] == "none"
    assert second["messages"][2:] == [
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": openai_reply()["tool_calls"],
        },
        {"role": "tool", "tool_call_id": "a1", "content": "5"},
        {"role": "tool", "tool_call_id": "a2", "content": "HI!"},
    ]
    assert '"name": "add"' in state.text()


def test_the_official_service_is_strict_where_schemas_are() -> None:
    mock = sgl.OpenAI("gpt-4o", api_key="k")
    body = ask.explain(backend=mock).requests[0].body
    assert [one["function"].get("strict") for one in body["tools"]] == [True, None]


@pytest.mark.parametrize("stream", [False, True])
def test_responses(stream: bool) -> None:
    with FakeOpenAI([openai_reply(), "It is 5.", "Bye."]) as service:
        backend = sgl.OpenAI("gpt-4o", base_url=service.url, api_key="k", api="responses")
        state = ask.run(choice="required", backend=backend, stream=stream)
        state.sync()
        verify(state)
        backend.shutdown()
    first, second, _ = service.bodies
    assert first["tools"][0] == {"type": "function", **ADD, "strict": True}
    assert first["tool_choice"] == "required"
    assert second["input"][2:] == [
        {"type": "function_call", "call_id": i, "name": n, "arguments": json.dumps(a)}
        for i, n, a in CALLS
    ] + [
        {"type": "function_call_output", "call_id": "a1", "output": "5"},
        {"type": "function_call_output", "call_id": "a2", "output": "HI!"},
    ]


@pytest.mark.parametrize("stream", [False, True])
def test_anthropic(stream: bool) -> None:
    blocks = [{"type": "text", "text": "Let me see."}] + [
        {"type": "tool_use", "id": i, "name": n, "input": a} for i, n, a in CALLS
    ]
    made = {"content": blocks, "stop_reason": "tool_use"}
    with FakeAnthropic(made, "It is 5.", "Bye.") as service:
        backend = sgl.Anthropic("claude-sonnet-4-5", base_url=service.url, api_key="k")
        state = ask.run(choice=add, backend=backend, stream=stream)
        state.sync()
        verify(state)
        backend.shutdown()
    first, second, third = service.bodies
    assert first["tools"][0] == {
        "name": "add", "description": "Sum.", "input_schema": ADD["parameters"],
    }  # fmt: skip
    assert first["tool_choice"] == {"type": "tool", "name": "add"}
    assert second["tool_choice"] == {"type": "auto"}
    assert third["tool_choice"] == {"type": "none"}
    assert second["messages"][1] == {"role": "assistant", "content": blocks}
    assert second["messages"][2]["content"] == [
        {"type": "tool_result", "tool_use_id": "a1", "content": "5"},
        {"type": "tool_result", "tool_use_id": "a2", "content": "HI!"},
    ]


def test_a_completion_model_has_the_calls_in_its_text() -> None:
    text = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 4}}\n</tool_call>'
    with FakeOpenAI([text, "It is 5.", "Bye."]) as service:
        backend = sgl.OpenAI("davinci-002", base_url=service.url, api_key="k",
                             chat_template="chatml")  # fmt: skip
        state = ask.run(backend=backend)
        assert (state["x"], state["x_calls"][0]["result"]) == ("It is 5.", "5")
        backend.shutdown()
    assert "tools" not in service.bodies[0]
    assert '"name": "add"' in service.bodies[0]["prompt"]


def test_an_unknown_tool_and_malformed_arguments_are_answered() -> None:
    reply = openai_reply()
    reply["tool_calls"][0]["function"]["name"] = "sub"
    reply["tool_calls"][1]["function"]["arguments"] = '{"text": '
    with FakeOpenAI([reply, "It is 5.", "Bye."]) as service:
        backend = sgl.OpenAI("gpt-4o", base_url=service.url, api_key="k")
        state = ask.run(backend=backend)
        first, second = state["x_calls"]
        backend.shutdown()
    assert first["error"] == "there is no tool 'sub'; there are add, shout"
    assert second["error"].startswith("the arguments do not fit")


def test_calls_of_two_turns_may_have_one_id() -> None:
    first, second = openai_reply(), openai_reply()
    second["tool_calls"][0]["function"]["arguments"] = '{"a": 2, "b": 2}'
    with FakeOpenAI([first, second, "It is 5.", "Bye."]) as service:
        backend = sgl.OpenAI("gpt-4o", base_url=service.url, api_key="k")
        state = ask.run(backend=backend)
        assert [call.value for call in state.value("x_calls")] == [5, "HI!", 4, "HI!"]
        backend.shutdown()


@pytest.mark.parametrize("index", [10**7, -1])
def test_a_streamed_call_with_a_wild_index_is_refused(index: int) -> None:
    whole: list[dict[str, Any]] = []
    with pytest.raises(IndexError, match=f"index {index}"):
        grown_calls(whole, [{"index": index, "id": "a1"}])
    assert whole == []


def test_a_malformed_call_is_a_bad_reply() -> None:
    reply = openai_reply()
    del reply["tool_calls"][0]["id"]
    with FakeOpenAI([reply]) as service:
        backend = sgl.OpenAI("gpt-4o", base_url=service.url, api_key="k", max_retries=0)
        with pytest.raises(sgl.ProgramError, match="malformed reply"):
            ask.run(backend=backend)
        backend.shutdown()


def test_calls_without_tools_are_no_answer() -> None:
    @sgl.function
    def plain(s: Any) -> None:
        s += sgl.user("What?") + sgl.assistant(sgl.gen("x"))

    with FakeOpenAI([openai_reply()]) as service:
        backend = sgl.OpenAI("gpt-4o", base_url=service.url, api_key="k")
        with pytest.raises(sgl.ProgramError, match="the model calls a tool instead"):
            plain.run(backend=backend)
        backend.shutdown()
    assert "tools" not in service.bodies[0]
