"""Agents with the clients of three APIs: a turn behind a tool's result computes what is new alone.

The model has random weights, so a call that a grammar forces is hardly ever in the tokens that its
text would be tokenized to. The tokenizer and the embedded model's way to write calls are real.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import sglang as sgl
from helpers.tiny_model import write_config
from helpers.toy_tokenizer import byte_level
from sglang.srt.tokenizer import Tokenizer

pytest.importorskip("torch")

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["the quick brown fox"]}, "days": {"enum": [7]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
QUESTION = "What is the weather where the lazy dog sleeps?"
RESULT = "It rains."


Usage = tuple[int, int, int]  # tokens of the prompt, cached ones of them, generated tokens


class Agent:
    """A server, and what it counts."""

    def __init__(self, url: str, tokenizer: Tokenizer) -> None:
        self.url, self.tokenizer = url, tokenizer
        self.http = httpx.Client(base_url=url, timeout=120)

    def gauge(self, name: str) -> float:
        lines = self.http.get("/metrics").text.splitlines()
        (line,) = [one for one in lines if one.startswith(f"sglang:{name}{{")]
        return float(line.split()[-1])

    def reset(self) -> None:
        self.http.post("/abort_request", json={"abort_all": True})
        self.http.post("/flush_cache")

    def check(self, first: Usage, second: Usage) -> None:
        """The second turn has the first one's own tokens, and computes none of them, but perhaps
        the last, which no pass needed to read. Tokenized, their text has fewer."""
        assert self.gauge("num_parked_contexts") == 0
        parked = first[0] + first[2]
        assert parked - 1 <= second[1] <= parked
        result = f"<|im_start|>user\n<result>{RESULT}</result><|im_end|>\n"
        behind = f"<|im_end|>\n{result}<|im_start|>assistant\n"
        assert second[0] == parked + len(self.tokenizer.encode_behind(behind))


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agent]:
    directory = tmp_path_factory.mktemp("model")
    byte_level(directory)
    tokenizer = Tokenizer(directory)
    write_config(Path(directory), vocab_size=tokenizer.vocab_size)
    settings: dict[str, Any] = {
        "device": "cpu", "threads": 1, "log_level": "warning", "max_total_tokens": 8000,
        "model_path": str(directory), "load_format": "dummy", "dtype": "float32",
        "context_length": 2048, "tool_call_parser": "tiny",
    }  # fmt: skip
    with sgl.Runtime(**settings) as runtime:
        yield Agent(runtime.url, tokenizer)


@pytest.fixture(autouse=True)
def nothing_left(agent: Agent) -> Iterator[None]:
    agent.reset()
    yield
    agent.reset()
    assert agent.gauge("num_parked_contexts") == agent.gauge("parked_bytes") == 0
    assert agent.http.get("/get_server_info").json()["stats"]["contexts"] == 0


def tool() -> dict[str, Any]:
    return {"name": "weather", "description": "the weather", "parameters": SCHEMA}


@pytest.mark.parametrize("stream", [False, True])
def test_chat_goes_on_with_its_own_tokens(agent: Agent, stream: bool) -> None:
    client = openai.OpenAI(base_url=f"{agent.url}/v1", api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]

    def turn(choice: str) -> tuple[str, Usage]:
        """The arguments of the call, and what was counted."""
        fields: Any = {
            "model": "m", "messages": messages, "tool_choice": choice, "seed": 1, "max_tokens": 99,
            "tools": [{"type": "function", "function": tool()}], "parallel_tool_calls": False,
        }  # fmt: skip
        if not stream:
            found = client.chat.completions.create(**fields)
            calls = found.choices[0].message.tool_calls or []
            return "".join(call.function.arguments for call in calls), usage_of(found.usage)
        arguments, usage = "", None
        for chunk in client.chat.completions.create(
            **fields, stream=True, stream_options={"include_usage": True}
        ):
            usage = chunk.usage or usage
            for choice_ in chunk.choices:
                calls = choice_.delta.tool_calls or []
                arguments += "".join(call.function.arguments or "" for call in calls)
        return arguments, usage_of(usage)

    def usage_of(usage: Any) -> Usage:
        cached = usage.prompt_tokens_details.cached_tokens
        return usage.prompt_tokens, cached, usage.completion_tokens

    arguments, first = turn("required")
    assert agent.gauge("num_parked_contexts") == 1
    function = {"name": "weather", "arguments": arguments}
    messages += [
        {"role": "assistant", "content": None,
         "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": RESULT},
    ]  # fmt: skip
    text = f'<tool>weather(city="{SCHEMA["properties"]["city"]["enum"][0]}", days=7)</tool>'
    assert first[2] > len(agent.tokenizer.encode(text)) + 1, "the model spells it otherwise"
    _, second = turn("auto")
    agent.check(first, second)


def test_responses_go_on_with_their_own_tokens(agent: Agent) -> None:
    client = openai.OpenAI(base_url=f"{agent.url}/v1", api_key="none", max_retries=0)
    fields: Any = {
        "model": "m", "max_output_tokens": 99, "tools": [{"type": "function", **tool()}],
        "parallel_tool_calls": False,
    }  # fmt: skip
    one = client.responses.create(input=QUESTION, tool_choice="required", **fields)
    assert agent.gauge("num_parked_contexts") == 1
    (call,) = one.output
    two = client.responses.create(
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": RESULT}],
        previous_response_id=one.id, tool_choice="auto", **fields,
    )  # fmt: skip
    first, second = (
        (one.usage.input_tokens, one.usage.input_tokens_details.cached_tokens,
         one.usage.output_tokens)
        for one in (one, two)
    )  # fmt: skip
    agent.check(first, second)


def test_messages_go_on_with_their_own_tokens(agent: Agent) -> None:
    client = anthropic.Anthropic(base_url=agent.url, api_key="none", max_retries=0)
    asked: Any = {"role": "user", "content": QUESTION}
    own = {"name": "weather", "description": "the weather", "input_schema": SCHEMA}
    fields: Any = {"model": "m", "max_tokens": 99, "tools": [own]}
    one = client.messages.create(
        messages=[asked], tool_choice={"type": "any", "disable_parallel_tool_use": True}, **fields
    )
    assert one.stop_reason == "tool_use"
    assert agent.gauge("num_parked_contexts") == 1
    (call,) = one.content
    result = {"type": "tool_result", "tool_use_id": call.id, "content": RESULT}
    turns = [asked, {"role": "assistant", "content": [call.to_dict()]},
             {"role": "user", "content": [result]}]  # fmt: skip
    two = client.messages.create(messages=turns, **fields)

    def usage_of(usage: Any) -> Usage:
        cached = usage.cache_read_input_tokens or 0
        return usage.input_tokens + cached, cached, usage.output_tokens

    agent.check(usage_of(one.usage), usage_of(two.usage))


def test_any_route_goes_on_and_several_may(agent: Agent) -> None:
    """A parked text is continued by raw prompts too; forks of it all have its tokens."""
    chat: Any = {
        "messages": [{"role": "user", "content": QUESTION}], "tool_choice": "required",
        "tools": [{"type": "function", "function": tool()}], "parallel_tool_calls": False,
    }  # fmt: skip
    usage = agent.http.post("/v1/chat/completions", json=chat).json()["usage"]
    parked = usage["total_tokens"]
    (call,) = SCHEMA["properties"]["city"]["enum"]
    text = agent.http.post("/apply-template", json=chat).json()["prompt"]
    text += f'<tool>weather(city="{call}", days=7)</tool><|im_end|> and'
    more = len(agent.tokenizer.encode_behind("<|im_end|> and"))
    for _ in range(2):
        found = agent.http.post(
            "/generate", json={"text": text, "sampling_params": {"max_new_tokens": 2}}
        ).json()["meta_info"]  # fmt: skip
        assert found["prompt_tokens"] == parked + more
        assert found["cached_tokens"] >= parked - 1
        found = agent.http.post("/v1/completions", json={"prompt": text, "max_tokens": 2}).json()
        assert found["usage"]["prompt_tokens"] == parked + more
    salted = {"text": text, "cache_salt": "x", "sampling_params": {"max_new_tokens": 2}}
    found = agent.http.post("/generate", json=salted).json()["meta_info"]
    assert found["prompt_tokens"] < parked + more, "another salt has nothing parked"
