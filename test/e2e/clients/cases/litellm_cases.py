"""LiteLLM with each provider name under which its users reach such a server."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # litellm would fetch prices from the network

import litellm
import pytest
from pydantic import BaseModel, ConfigDict

MESSAGES: Any = [{"role": "user", "content": "What is 17 + 25?"}]
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
    },
}


class Lamp(BaseModel):
    model_config = ConfigDict(extra="forbid")

    lit: bool


@pytest.fixture
def asked(url: str, key: str) -> dict[str, Any]:
    return {
        "model": "openai/m", "api_base": f"{url}/v1", "api_key": key, "temperature": 0,
        "num_retries": 0, "timeout": 60,
    }  # fmt: skip


@pytest.mark.parametrize("provider", ["openai", "hosted_vllm", "litellm_proxy"])
def test_providers(asked: dict[str, Any], provider: str) -> None:
    answer = litellm.completion(**{**asked, "model": f"{provider}/m"}, messages=MESSAGES)
    assert answer.choices[0].message.content == "42"
    assert answer.usage.prompt_tokens_details.cached_tokens >= 0


def test_anthropic_provider(asked: dict[str, Any], url: str) -> None:
    answer = litellm.completion(
        **{**asked, "model": "anthropic/m", "api_base": url}, messages=MESSAGES, max_tokens=16
    )
    assert answer.choices[0].message.content == "42"


def test_text_completion(asked: dict[str, Any]) -> None:
    model = {**asked, "model": "text-completion-openai/m"}
    answer = litellm.text_completion(
        **model, prompt="Question: What is 17 + 25?\nAnswer:", max_tokens=4
    )
    assert answer.choices[0].text.startswith(" 42")


def test_stream_with_usage(asked: dict[str, Any]) -> None:
    chunks = list(
        litellm.completion(
            **asked, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == "42"
    assert chunks[-1].usage.completion_tokens > 0


def test_tools(asked: dict[str, Any]) -> None:
    answer = litellm.completion(
        **asked, messages=[{"role": "user", "content": "Weather in Paris?"}], tools=[WEATHER],
        tool_choice="required", parallel_tool_calls=False,
    )  # fmt: skip
    (call,) = answer.choices[0].message.tool_calls
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Oslo")


def test_response_format(asked: dict[str, Any]) -> None:
    answer = litellm.completion(
        **{**asked, "model": "hosted_vllm/m"}, messages=MESSAGES, response_format=Lamp
    )
    assert Lamp.model_validate_json(answer.choices[0].message.content)


def test_embedding_and_responses(asked: dict[str, Any]) -> None:
    where = {name: asked[name] for name in ("model", "api_base", "api_key")}
    assert len(litellm.embedding(**where, input=["the lamp", "the rope"]).data) == 2
    answer = litellm.responses(**where, input="What is 17 + 25?", max_output_tokens=8)
    assert answer.output


def test_errors(asked: dict[str, Any]) -> None:
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(**{**asked, "api_key": "wrong"}, messages=MESSAGES)
    with pytest.raises(litellm.BadRequestError, match="top_p is 2"):
        litellm.completion(**asked, messages=MESSAGES, top_p=2)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(**asked, messages=[{"role": "user", "content": "lamp " * 5000}])


def test_async(asked: dict[str, Any]) -> None:
    answer = asyncio.run(litellm.acompletion(**asked, messages=MESSAGES))
    assert answer.choices[0].message.content == "42"
