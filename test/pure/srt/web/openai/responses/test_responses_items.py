"""Items of the Responses API as messages of a chat."""

from __future__ import annotations

from typing import Any

import pytest
from sglang.srt.requests.request_error import RequestError
from sglang.srt.web.openai.responses.items import item_id, messages_of, read_items, response_of

USER: Any = {"role": "user", "content": "Hi"}
SAID: Any = {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
             "content": [{"type": "output_text", "text": "He", "annotations": [], "logprobs": []},
                         {"type": "refusal", "refusal": "llo"}]}  # fmt: skip
THOUGHT: Any = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x",
                "content": [{"type": "reasoning_text", "text": "Hm."}]}  # fmt: skip


def call(id: str) -> Any:
    return {"type": "function_call", "call_id": id, "name": f"f{id}", "arguments": "{}"}


def result(id: str) -> Any:
    return {"type": "function_call_output", "call_id": id, "output": f"r{id}"}


def messages(*items: Any, instructions: str | None = None) -> list[Any]:
    return messages_of(instructions, read_items(list(items), "0", [], lambda _: None))


def told(id: str) -> Any:
    return {"id": id, "type": "function", "function": {"name": f"f{id}", "arguments": "{}"}}


def test_one_turn_is_one_message() -> None:
    assert messages(USER, THOUGHT, SAID, call("1"), call("2"), result("1"), result("2")) == [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello", "reasoning_content": "Hm.",
         "tool_calls": [told("1"), told("2")]},
        {"role": "tool", "tool_call_id": "1", "content": "r1", "name": "f1"},
        {"role": "tool", "tool_call_id": "2", "content": "r2", "name": "f2"},
    ]  # fmt: skip


def test_turns_in_a_row() -> None:
    found = messages(USER, call("1"), SAID, SAID, THOUGHT, THOUGHT, call("2"))
    assert [sorted(message) for message in found[1:]] == [
        ["content", "role", "tool_calls"],
        ["content", "role"],
        ["content", "role"],
        ["content", "reasoning_content", "role"],
        ["content", "reasoning_content", "role", "tool_calls"],
    ]


def test_rules_come_first_and_once() -> None:
    developer = {"role": "developer", "content": "B"}
    assert messages(developer, USER, developer, instructions="A") == [
        {"role": "system", "content": "A\n\nB"},
        {"role": "user", "content": "Hi"},
        {"role": "developer", "content": "B"},
    ]
    assert messages(developer, {"role": "system", "content": "C"}, USER)[0] == {
        "role": "system", "content": "B\n\nC",
    }  # fmt: skip


def test_results_may_be_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    found = messages(call("1"), {**result("1"), "output": parts})
    assert found[-1]["content"] == "ab"


def test_a_summary_stands_for_reasoning_that_is_not_shown() -> None:
    summary = [{"type": "summary_text", "text": "Thought."}]
    (found,) = messages({"type": "reasoning", "summary": summary})
    assert found["reasoning_content"] == "Thought."
    (empty,) = messages({"type": "reasoning", "summary": [], "encrypted_content": "x"})
    assert "reasoning_content" not in empty


def test_ids_are_given_where_there_are_none() -> None:
    items = read_items([USER, SAID, call("1")], "n", [], lambda _: None)
    assert [item["id"] for item in items] == ["msg_n_in0", "msg_1", "fc_n_in2"]
    assert response_of(item_id("reasoning", "n", "0")) == "resp_n"
    assert response_of("msg_1") == ""


def test_a_call_may_be_in_what_is_continued() -> None:
    before = read_items([call("1")], "n", [], lambda _: None)
    assert read_items([result("1")], "m", before, lambda _: None)[0]["call_id"] == "1"
    with pytest.raises(RequestError, match="no call before has it"):
        read_items([result("2")], "m", before, lambda _: None)


def test_an_item_is_referred_to_once() -> None:
    stored: Any = {"id": "rs_n_0", **THOUGHT, "summary": [{"type": "summary_text", "text": "x"}]}
    reference = {"type": "item_reference", "id": stored["id"]}
    found = read_items([reference, USER], "m", [], lambda _: stored)
    assert found[0]["id"] == stored["id"]
    for again in (reference, {"id": stored["id"]}):
        with pytest.raises(RequestError, match=r"input\[2\]\.id is 'rs_1', as an earlier one"):
            read_items([reference, USER, again], "m", [], lambda _: stored)


@pytest.mark.parametrize(
    "entry",
    [
        {"role": "user", "content": [
            {"type": "input_image", "image_url": "data:,", "detail": [[]] * 9}]},
        {"type": "mcp_call", "name": "f", "arguments": "{}", "output": "x",
         "server_label": {"a": []}},
    ],
)  # fmt: skip
def test_what_no_model_reads_is_a_text_too(entry: Any) -> None:
    with pytest.raises(RequestError, match="give a text"):
        read_items([entry], "n", [], lambda _: None)
