"""The ``ollama`` package as its README uses it, against the server."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import ollama
import pytest

MODEL = "sglang-tiny"
QUESTION = "What is 17 + 25?"
MESSAGES: Any = [{"role": "user", "content": QUESTION}]
GREEDY: Any = {"temperature": 0, "num_predict": 16}
CITY: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def get_weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    return f"rain in {city}"


@pytest.fixture(scope="module")
def client(url: str, key: str) -> ollama.Client:
    return ollama.Client(host=url, headers={"Authorization": f"Bearer {key}"}, timeout=60)


def test_chat(client: ollama.Client) -> None:
    reply = client.chat(MODEL, MESSAGES, options=GREEDY)
    assert (reply.message.content, reply.done_reason) == ("42", "stop")
    parts = list(client.chat(MODEL, MESSAGES, options=GREEDY, stream=True))
    assert "".join(part.message.content or "" for part in parts) == "42"
    assert parts[-1].eval_count == reply.eval_count


def test_generate(client: ollama.Client) -> None:
    assert client.generate(MODEL, QUESTION, options=GREEDY).response == "42"
    parts = client.generate(MODEL, QUESTION, options=GREEDY, stream=True)
    assert "".join(part.response or "" for part in parts) == "42"


def test_schema(client: ollama.Client) -> None:
    reply = client.chat(MODEL, MESSAGES, format=CITY, options={"temperature": 0})
    assert json.loads(reply.message.content or "")["city"] in ("Paris", "Oslo")


def test_tools(client: ollama.Client) -> None:
    """Whether the model calls one is its affair; a conversation with calls is read."""
    call = {"function": {"name": "get_weather", "arguments": {"city": "Oslo"}}}
    reply = client.chat(
        MODEL,
        [*MESSAGES, {"role": "assistant", "tool_calls": [call]},
         {"role": "tool", "tool_name": "get_weather", "content": "rain"}],
        tools=[get_weather], options=GREEDY,
    )  # fmt: skip
    assert reply.done


def test_embed(client: ollama.Client) -> None:
    found = client.embed(MODEL, ["the lamp is lit", "the rope is long"]).embeddings
    assert len(found) == 2
    assert abs(sum(x * x for x in found[0]) - 1) < 1e-3
    assert list(client.embeddings(MODEL, "the lamp is lit").embedding) == pytest.approx(
        list(found[0]), abs=1e-3
    )


def test_models(client: ollama.Client) -> None:
    assert [tag.model for tag in client.list().models] == [f"{MODEL}:latest"]
    assert client.ps().models[0].context_length
    assert "completion" in (client.show(MODEL).capabilities or ())
    assert client.pull(MODEL).status == "success"


def test_errors(client: ollama.Client, url: str) -> None:
    with pytest.raises(ollama.ResponseError) as missing:
        client.chat("llama3.2", MESSAGES)
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError) as refused:
        ollama.Client(host=url).chat(MODEL, MESSAGES)
    assert refused.value.status_code == 401
    with pytest.raises(ollama.ResponseError, match="format"):
        client.chat(MODEL, MESSAGES, format={"type": "nothing"})


def test_async(url: str, key: str) -> None:
    async def run() -> str:
        client = ollama.AsyncClient(host=url, headers={"Authorization": f"Bearer {key}"})
        stream = await client.chat(MODEL, MESSAGES, options=GREEDY, stream=True)
        return "".join([part.message.content or "" async for part in stream])

    assert asyncio.run(run()) == "42"
