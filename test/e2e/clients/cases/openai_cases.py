"""The ``openai`` package as its README uses it, against the server."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
import time
from typing import Any, Literal

import httpx
import openai
import pytest
from pydantic import BaseModel

QUESTION = "What is 17 + 25?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
MODERN = int(openai.VERSION.split(".")[0]) >= 2
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}


class Lamp(BaseModel):
    color: Literal["red", "blue"]
    lit: bool


@pytest.fixture(scope="module")
def client(url: str, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=60)


def test_models(client: openai.OpenAI) -> None:
    (model,) = client.models.list()
    assert client.models.retrieve(model.id) == model
    with pytest.raises(openai.NotFoundError, match="There is no model"):
        client.models.retrieve("gpt-4o")


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="m", messages=MESSAGES, temperature=0)
    (choice,) = answer.choices
    assert (choice.message.content, choice.finish_reason) == ("42", "stop")
    assert choice.message.role == "assistant"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    again = client.chat.completions.create(model="m", messages=MESSAGES, temperature=0)
    details = again.usage.prompt_tokens_details
    assert details.cached_tokens == again.usage.prompt_tokens - 1


def test_chat_fields(client: openai.OpenAI) -> None:
    """Common ones that are seldom tried."""
    answer = client.chat.completions.create(
        model="m",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": QUESTION}], "name": "nora"},
        ],
        max_completion_tokens=2, n=2, seed=7, temperature=0.5, top_p=0.9, stop=["\n", "|"],
        presence_penalty=0.1, frequency_penalty=0.1, logit_bias={"5": -100}, logprobs=True,
        top_logprobs=2, user="u", metadata={"a": "b"}, store=False, service_tier="auto",
        extra_body={"top_k": 5, "min_p": 0.01, "ignore_eos": True}, timeout=30,
    )  # fmt: skip
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        for entry in choice.logprobs.content:
            assert entry.logprob <= 0
            assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token
            assert len(entry.top_logprobs) == 2


def test_chat_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="m", messages=MESSAGES, temperature=0, stream=True,
        stream_options={"include_usage": True},
    )  # fmt: skip
    *chunks, last = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "42"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage.completion_tokens > 0


def test_stream_helper(client: openai.OpenAI) -> None:
    space = client.chat.completions if hasattr(client.chat.completions, "stream") else None
    space = space or client.beta.chat.completions
    text = ""
    with space.stream(model="m", messages=MESSAGES, temperature=0) as stream:
        for event in stream:
            if event.type == "content.delta":
                text += event.delta
        assert stream.get_final_completion().choices[0].message.content == text == "42"


def test_leaving_a_stream_early(client: openai.OpenAI, url: str, key: str) -> None:
    stream = client.chat.completions.create(
        model="m", messages=MESSAGES, stream=True, max_tokens=2000, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    deadline = time.monotonic() + 5
    headers = {"Authorization": f"Bearer {key}"}
    while httpx.get(f"{url}/server_info", headers=headers, timeout=60).json()["stats"]["running"]:
        assert time.monotonic() < deadline, "the engine still draws for nobody"
        time.sleep(0.02)


def test_parse(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="m", messages=[{"role": "user", "content": "Describe a lamp."}], response_format=Lamp
    )
    assert isinstance(answer.choices[0].message.parsed, Lamp)
    found = client.chat.completions.create(
        model="m", messages=MESSAGES, max_tokens=64, response_format={"type": "json_object"},
        extra_body={"whitespace_pattern": ""}, temperature=0,
    )  # fmt: skip
    if found.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(found.choices[0].message.content), dict)


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_tools(client: openai.OpenAI, choice: Any) -> None:
    messages = [{"role": "user", "content": "Weather in Paris?"}]
    answer = client.chat.completions.create(
        model="m", messages=messages, tools=[WEATHER], tool_choice=choice, temperature=0,
        parallel_tool_calls=False,
    )  # fmt: skip
    message = answer.choices[0].message
    (call,) = message.tool_calls
    assert call.function.name == "get_weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Oslo")
    result = {"role": "tool", "tool_call_id": call.id, "content": "sunny"}
    following = [*messages, message, result]
    assert client.chat.completions.create(model="m", messages=following, max_tokens=4).choices
    stream = client.chat.completions.create(
        model="m", messages=messages, tools=[WEATHER], tool_choice=choice, temperature=0,
        stream=True, parallel_tool_calls=False,
    )  # fmt: skip
    name = arguments = ""
    for chunk in stream:
        for part in chunk.choices[0].delta.tool_calls or ():
            name += part.function.name or ""
            arguments += part.function.arguments or ""
    assert (name, arguments) == (call.function.name, call.function.arguments)


def test_parsed_tools(client: openai.OpenAI) -> None:
    answer = client.chat.completions.parse(
        model="m", messages=[{"role": "user", "content": "A lamp."}], temperature=0,
        tools=[openai.pydantic_function_tool(Lamp)], tool_choice="required",
        parallel_tool_calls=False,
    )  # fmt: skip
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Lamp)


def test_completions(client: openai.OpenAI) -> None:
    prompt = f"Question: {QUESTION}\nAnswer:"
    answer = client.completions.create(
        model="m", prompt=prompt, max_tokens=4, temperature=0, echo=True, logprobs=2
    )
    text, logprobs = answer.choices[0].text, answer.choices[0].logprobs
    assert text.startswith(prompt + " 42")
    assert logprobs.token_logprobs[0] is None
    assert [text[a:b] for a, b in zip(logprobs.text_offset, logprobs.text_offset[1:])] == (
        logprobs.tokens[: len(logprobs.text_offset) - 1]
    )
    several = client.completions.create(model="m", prompt=[prompt, "The"], n=2, max_tokens=1)
    assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
    stream = client.completions.create(
        model="m", prompt=prompt, max_tokens=4, temperature=0, stream=True
    )
    assert prompt + "".join(chunk.choices[0].text for chunk in stream) == text


def test_embeddings(client: openai.OpenAI) -> None:
    """The package asks for base64 by itself."""
    texts = ["the lamp", "the rope"]
    whole = client.embeddings.create(model="m", input=texts)
    plain = client.embeddings.create(model="m", input=texts, encoding_format="float")
    based: Any = client.embeddings.create(model="m", input=texts, encoding_format="base64")
    for item, other, coded in zip(whole.data, plain.data, based.data, strict=True):
        assert item.embedding == pytest.approx(other.embedding, abs=1e-6)
        data = base64.b64decode(coded.embedding)
        assert list(struct.unpack(f"<{len(data) // 4}f", data)) == pytest.approx(
            item.embedding, abs=1e-6
        )
    assert whole.usage.prompt_tokens > 0


def test_responses(client: openai.OpenAI) -> None:
    answer = client.responses.create(
        model="m", instructions="Be brief.", input=QUESTION, temperature=0, max_output_tokens=16
    )
    assert answer.status in ("completed", "incomplete")
    assert answer.output_text
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens
    assert client.responses.retrieve(answer.id).output_text == answer.output_text
    following = client.responses.create(
        model="m", input="And plus one?", previous_response_id=answer.id, max_output_tokens=8
    )
    assert following.previous_response_id == answer.id
    assert following.usage.input_tokens > answer.usage.input_tokens
    assert len(list(client.responses.input_items.list(answer.id))) == 1
    client.responses.delete(answer.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_responses_stream(client: openai.OpenAI) -> None:
    kinds, text = [], ""
    for event in client.responses.create(
        model="m", input=QUESTION, temperature=0, max_output_tokens=16, stream=True
    ):
        kinds.append(event.type)
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")
    assert event.response.output_text == text
    with client.responses.stream(model="m", input=QUESTION, temperature=0) as stream:
        assert next(event.type for event in stream) == "response.created"
        assert stream.get_final_response().output_text


def test_responses_parse_and_tools(client: openai.OpenAI) -> None:
    answer = client.responses.parse(model="m", input="Describe a lamp.", text_format=Lamp)
    assert isinstance(answer.output_parsed, Lamp)
    tool: Any = {"type": "function", **WEATHER["function"]}
    called = client.responses.create(
        model="m", input="Weather in Paris?", tools=[tool], tool_choice="required", temperature=0,
        parallel_tool_calls=False,
    )  # fmt: skip
    call = next(item for item in called.output if item.type == "function_call")
    assert json.loads(call.arguments)["city"] in ("Paris", "Oslo")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    after = client.responses.create(
        model="m", input=[result], previous_response_id=called.id, max_output_tokens=8
    )
    assert after.output


def test_raw_responses_and_errors(client: openai.OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="m", messages=MESSAGES, max_tokens=1, extra_headers={"X-Request-Id": "req-1"}
    )
    assert raw.headers["x-request-id"] == "req-1"
    assert raw.parse()._request_id == "req-1"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=MESSAGES, temperature=-1)
    error = caught.value
    assert (error.param, error.code, error.type) == (
        "temperature", "invalid_value", "invalid_request_error"
    )  # fmt: skip
    assert error.request_id
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.001).chat.completions.create(
            model="m", messages=MESSAGES, max_tokens=500
        )


def test_async(url: str, key: str) -> None:
    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key) as client:

            async def one(i: int) -> str:
                said: Any = [{"role": "user", "content": f"What is {i} + 1?"}]
                parts = []
                stream = await client.chat.completions.create(
                    model="m", messages=said, temperature=0, stream=True
                )
                async for chunk in stream:
                    parts.append(chunk.choices[0].delta.content or "")
                return "".join(parts)

            assert await asyncio.gather(*map(one, range(4))) == ["1", "2", "3", "4"]

    asyncio.run(main())
