"""The ``anthropic`` package as its README uses it, against the server."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import pytest

QUESTION = "What is 17 + 25?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
GREEDY: Any = {"temperature": 0}  # the package no longer has an argument for it
WEATHER: Any = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def client(url: str, key: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=60)


def test_message(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model="claude", max_tokens=16, messages=MESSAGES, extra_body=GREEDY
    )
    assert [block.text for block in message.content] == ["42"]
    assert (message.role, message.stop_reason) == ("assistant", "end_turn")
    assert message.usage.output_tokens > 0
    assert message._request_id


def test_message_fields(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model="claude", max_tokens=4,
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            {"role": "user", "content": [{"type": "text", "text": QUESTION}]},
            {"role": "assistant", "content": "The answer is"},
        ],
        stop_sequences=["\n"], metadata={"user_id": "u"}, service_tier="auto",
        extra_body={**GREEDY, "top_k": 4, "top_p": 0.9},
    )  # fmt: skip
    assert message.content[0].type == "text"
    assert message.stop_reason in ("end_turn", "max_tokens", "stop_sequence")


def test_stream(client: anthropic.Anthropic) -> None:
    with client.messages.stream(
        model="claude", max_tokens=16, messages=MESSAGES, extra_body=GREEDY
    ) as stream:
        assert "".join(stream.text_stream) == "42"
        assert stream.get_final_message().stop_reason == "end_turn"
    events = client.messages.create(
        model="claude", max_tokens=16, messages=MESSAGES, stream=True, extra_body=GREEDY
    )
    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]


def test_tools(client: anthropic.Anthropic) -> None:
    asked: Any = {
        "model": "claude", "max_tokens": 64, "extra_body": GREEDY, "tools": [WEATHER]
    }  # fmt: skip
    said: Any = [{"role": "user", "content": "Weather in Paris?"}]
    message = client.messages.create(
        **asked, messages=said, tool_choice={"type": "any", "disable_parallel_tool_use": True}
    )
    assert message.stop_reason == "tool_use"
    call = next(block for block in message.content if block.type == "tool_use")
    assert call.input["city"] in ("Paris", "Oslo")
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "sunny"}
    turns = [*said, {"role": "assistant", "content": message.content}]
    assert client.messages.create(
        **asked, messages=[*turns, {"role": "user", "content": [result]}]
    ).content
    with client.messages.stream(
        **asked, messages=said, tool_choice={"type": "tool", "name": "get_weather"}
    ) as stream:
        final = stream.get_final_message()
    assert final.content[-1].input["city"] in ("Paris", "Oslo")


def test_count_tokens(client: anthropic.Anthropic) -> None:
    counted = client.messages.count_tokens(model="claude", messages=MESSAGES, system="Be brief.")
    message = client.messages.create(
        model="claude", max_tokens=1, messages=MESSAGES, system="Be brief."
    )
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_errors(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(
            model="claude", max_tokens=4, messages=MESSAGES, extra_body={"temperature": -1}
        )
    assert caught.value.body["type"] == "error"
    assert caught.value.body["error"]["type"] == "invalid_request_error"
    assert "temperature is -1" in caught.value.body["error"]["message"]
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="wrong").messages.create(
            model="claude", max_tokens=4, messages=MESSAGES
        )
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("nothing")


def test_models(client: anthropic.Anthropic) -> None:
    found = list(client.models.list())
    assert [model.id for model in found]
    assert client.models.retrieve(found[0].id).id == found[0].id


def test_async(url: str, key: str) -> None:
    async def main() -> None:
        async with anthropic.AsyncAnthropic(base_url=url, auth_token=key, api_key=None) as client:
            async with client.messages.stream(
                model="claude", max_tokens=16, messages=MESSAGES, extra_body=GREEDY
            ) as stream:
                parts = [text async for text in stream.text_stream]
            assert "".join(parts) == "42"

    asyncio.run(main())
