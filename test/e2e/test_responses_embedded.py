"""/v1/responses of a real server, through OpenAI's client."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from helpers.launched import Server, best_model, client_of, launched
from pydantic import BaseModel, Field

ADD: Any = {
    "type": "function",
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Person(BaseModel):
    name: str = Field(max_length=20)
    age: int = Field(ge=0, le=150)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with launched(best_model(tmp_path_factory.mktemp("model"))) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client
    with client_of(server) as http:
        http.idle()


def test_a_conversation(client: openai.OpenAI) -> None:
    asked: Any = {"model": "any", "temperature": 0, "max_output_tokens": 24}
    first = client.responses.create(input="What is 17 + 25?", **asked)
    with client.responses.stream(input="What is 17 + 25?", **asked) as events:
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    assert text == first.output_text
    second = client.responses.create(input="Why?", previous_response_id=first.id, **asked)
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens


def test_a_typed_answer(client: openai.OpenAI) -> None:
    answer = client.responses.parse(
        model="any", input="Nora is 34. As JSON:", text_format=Person, max_output_tokens=200
    )
    assert isinstance(answer.output_parsed, Person)


def test_a_call(client: openai.OpenAI) -> None:
    asked: Any = {"model": "any", "input": "Add 3.", "tools": [ADD], "tool_choice": "required",
                  "parallel_tool_calls": False, "temperature": 0}  # fmt: skip
    (call,) = client.responses.create(**asked).output
    assert call.type == "function_call"
    assert 0 <= json.loads(call.arguments)["a"] <= 99
    with client.responses.stream(**asked) as events:
        (streamed,) = events.get_final_response().output
    assert streamed.type == "function_call"
    assert streamed.arguments == call.arguments
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    answer = client.responses.create(
        model="any", input=[{"role": "user", "content": "Add 3."}, call, result],
        max_output_tokens=8,
    )  # fmt: skip
    assert answer.usage is not None


def test_the_background_ends_with_the_server(tmp_path_factory: pytest.TempPathFactory) -> None:
    with launched(best_model(tmp_path_factory.mktemp("model"))) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        extra = {"ignore_eos": True}
        with client:
            first = client.responses.create(input="Hi", background=True, extra_body=extra)
            assert client.responses.cancel(first.id).status == "cancelled"
            for _ in range(4):
                client.responses.create(input="Hi", background=True, extra_body=extra)
        begun = time.monotonic()
        server.process.send_signal(signal.SIGTERM)
        assert server.wait_end() == 0
        assert time.monotonic() - begun < 25  # other requests get 30 s
        assert "Traceback" not in server.errors()
