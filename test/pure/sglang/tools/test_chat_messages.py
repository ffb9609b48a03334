"""Messages of OpenAI's form begin a state, and come out of it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sglang as sgl

TURNS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 3, and the time?"},
    {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [
            {"id": "a1", "type": "function",
             "function": {"name": "add", "arguments": '{"a": 2, "b": 3}'}},
            {"id": "a2", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "content": "5", "tool_call_id": "a1"},
    {"role": "tool", "content": "noon", "tool_call_id": "a2", "name": "now"},
]  # fmt: skip


@sgl.function
def answer(s: Any) -> str:
    s += sgl.assistant(sgl.gen("reply"))
    return str(s["reply"])


@sgl.function
def named(s: Any, messages: list[str]) -> str:
    s += sgl.user(messages[0]) + sgl.assistant(sgl.gen("reply"))
    return str(s["reply"])


def test_a_run_begins_with_messages_and_gives_them_back() -> None:
    mock = sgl.Mock(["It is 5."])
    state = answer.run(messages=TURNS, backend=mock)
    assert state.ret_value == "It is 5."
    assert state.messages() == [*TURNS, {"role": "assistant", "content": "It is 5."}]
    assert mock.calls[0].prompt.text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\n2 + 3, and the time?<|im_end|>\n"
        "<|im_start|>assistant\nLet me see.<tool_call>\n"
        '{"name": "add", "arguments": {"a": 2, "b": 3}}\n</tool_call>\n<tool_call>\n'
        '{"name": "now", "arguments": {}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nnoon\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_a_run_of_an_event_loop_and_a_batch_take_them_too() -> None:
    import asyncio

    async def arun() -> Any:
        return await answer.arun(messages=TURNS[:2], backend=sgl.Mock(["a"]))

    assert asyncio.run(arun()).messages()[:2] == TURNS[:2]


def test_an_argument_of_that_name_stays_one() -> None:
    assert named.run(messages=["Hi"], backend=sgl.Mock(["ho"])).messages() == [
        {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "ho"},
    ]  # fmt: skip


def test_turns_are_appended_anywhere_and_traced_without_calls() -> None:
    @sgl.function
    def two(s: Any) -> None:
        s.messages([{"role": "developer", "content": "Be brief."}])
        s += sgl.user("Hi")
        s.messages([{"role": "assistant", "content": [{"type": "text", "text": "Ho"}]}])

    said = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Ho")]
    state = two.run(backend=sgl.Mock())
    assert [(m["role"], m["content"]) for m in state.messages()] == said
    compiled = two.compile().run(backend=sgl.Mock())
    assert compiled.messages() == state.messages()

    @sgl.function
    def calls(s: Any) -> None:
        s.messages(TURNS)

    with pytest.raises(sgl.TraceError, match="messages with calls of tools"):
        calls.trace()


def test_images_come_through() -> None:
    url = "data:image/png;base64,iVBORw0KGgo="
    content = [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": {"url": url}}]
    turns = [{"role": "user", "content": content}]
    assert answer.run(messages=turns, backend=sgl.Mock(["x"])).messages()[:1] == turns


def test_messages_open_no_file(tmp_path: Path) -> None:
    """A stranger may have written them: neither a path nor a file: URL is read."""
    path = tmp_path / "secret.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n secret")
    for url in (str(path), f"file://{path}", "/etc/passwd"):
        for kind in ("image_url", "video_url"):
            turns = [{"role": "user", "content": [{"type": kind, kind: {"url": url}}]}]
            with pytest.raises(ValueError, match=rf"content\[0\].{kind} is .* open no file"):
                answer.run(messages=turns, backend=sgl.Mock(["x"]))


DEEP = '{"a":' + "[" * 100_000 + "]" * 100_000 + "}"
DEEP_CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": DEEP}}]}
BAD_CALL = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}


@pytest.mark.parametrize(
    ("messages", "error", "said"),
    [
        ("hi", TypeError, "messages is 'hi'; give a list"),
        ([3], TypeError, r"messages\[0\] is 3"),
        ([{"role": "robot"}], ValueError, r"messages\[0\].role is 'robot'; use one of system"),
        ([{"role": "user", "content": 3}], TypeError, r"messages\[0\].content is 3"),
        ([{"role": "user", "content": [{"type": "audio"}]}], ValueError, r"content\[0\] is"),
        ([{"role": "tool", "content": "5"}], ValueError, "tool_call_id is missing"),
        ([{"role": "user", "tool_calls": BAD_CALL["tool_calls"]}], ValueError, "JSON object"),
        ([BAD_CALL], ValueError, r"tool_calls\[0\].function.arguments is '\[1\]'"),
        ([DEEP_CALL], ValueError, "arguments is .*; give a JSON object"),
        ([{"role": "assistant", "tool_calls": [{}]}], ValueError, r"tool_calls\[0\] is {}; give"),
        ([{"role": "user"}] * 10_001, ValueError, "at most 10000"),
    ],
)
def test_what_is_no_message_is_named(messages: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        answer.run(messages=messages, backend=sgl.Mock())
