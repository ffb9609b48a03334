"""/v1/messages of a real model: Anthropic's client, and the language through its own backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import jsonschema
import pytest
import sglang as sgl

pytest.importorskip("torch")

WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 12}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
QUESTION: Any = [{"role": "user", "content": "What is 17 + 25?"}]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with sgl.Runtime(device="cpu", threads=1, max_total_tokens=20000) as runtime:
        yield runtime.url


@pytest.fixture
def client(url: str) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=60) as client:
        yield client


def test_the_client(client: anthropic.Anthropic) -> None:
    cold: Any = {"temperature": 0}
    counted = client.messages.count_tokens(model="m", messages=QUESTION)
    whole = client.messages.create(model="m", max_tokens=20, messages=QUESTION, extra_body=cold)
    usage = whole.usage
    assert usage.input_tokens + (usage.cache_read_input_tokens or 0) == counted.input_tokens
    assert usage.output_tokens <= 20
    with client.messages.stream(
        model="m", max_tokens=20, messages=QUESTION, extra_body=cold
    ) as stream:
        text = "".join(stream.text_stream)
        streamed = stream.get_final_message()
    assert [block.type for block in whole.content] == ["text"]
    assert whole.content[0].to_dict()["text"] == text != ""
    assert streamed.content[0].to_dict()["text"] == text
    assert (streamed.usage.cache_read_input_tokens or 0) > 0  # the same prompt, once more


def test_a_call_that_is_asked_for_fits_its_schema(client: anthropic.Anthropic) -> None:
    message = client.messages.create(
        model="m", max_tokens=300, messages=QUESTION, tools=[WEATHER],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )  # fmt: skip
    (block,) = message.content
    assert block.type == "tool_use"
    jsonschema.validate(block.input, WEATHER["input_schema"])
    assert message.stop_reason == "tool_use"


@sgl.function
def sums(s: Any) -> None:
    s += sgl.system("You add numbers.")
    s += sgl.user("What is 17 + 25?")
    s += sgl.assistant("The sum is" + sgl.gen("sum", max_tokens=8, temperature=0, stop="\n"))
    s += sgl.user("Nora is 34. As JSON:")
    s += sgl.assistant(sgl.gen("person", max_tokens=100, json_schema=PERSON, temperature=0))
    s += sgl.user("Yes or no?")
    s += sgl.assistant(sgl.select("choice", ["yes", "no"]))


PERSON = (
    '{"type": "object", "properties": {"age": {"type": "integer", "maximum": 99, "minimum": 0}},'
    ' "required": ["age"], "additionalProperties": false}'
)


def test_a_program_in_the_language(url: str) -> None:
    """The backend for Anthropic's API, pointed at this server: as its own backend answers."""
    backend = sgl.Anthropic("claude-3-haiku", base_url=url, api_key="none", max_retries=0)
    state = sums.run(backend=backend)
    assert state["choice"] in ("yes", "no")
    assert '"age"' in state["person"]
    assert state["sum"] == sums.run(backend=sgl.RuntimeEndpoint(url))["sum"]
    meta = state.get_meta_info("sum")
    assert meta["prompt_tokens"] > 0
    assert meta["finish_reason"]["type"] in ("stop", "length")
    assert backend.token_usage.completion_tokens > 0
    assert "".join(sums.run(backend=backend, stream=True).text_iter("sum")) == state["sum"]


def test_a_long_conversation_is_refused_with_its_length(client: anthropic.Anthropic) -> None:
    long: Any = [{"role": "user", "content": "a b " * 20000}]
    with pytest.raises(anthropic.BadRequestError, match=r"context length|KV cache"):
        client.messages.create(model="m", max_tokens=9, messages=long)
    assert client.messages.create(model="m", max_tokens=9, messages=QUESTION).content
