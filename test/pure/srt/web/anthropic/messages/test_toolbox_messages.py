"""/v1/messages in which the server runs the operator's tools, through Anthropic's own client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from helpers.scripted_server import serve_scripted
from helpers.toolbox import InProcess, Turns, called
from helpers.toy_tokenizer import byte_level
from pydantic import TypeAdapter
from sglang.srt.requests.completion.output import Finish
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer

EVENTS: TypeAdapter[Any] = TypeAdapter(BetaRawMessageStreamEvent)
TOOLBOX: Any = {"type": "toolbox"}
WEATHER: Any = {"name": "weather", "input_schema": {"type": "object"}}
ASK: dict[str, Any] = {"role": "user", "content": "2 + 3?"}
BASE: dict[str, Any] = {"model": "m", "max_tokens": 200, "messages": [ASK], "tools": [TOOLBOX]}
USE: Any = {"type": "mcp_tool_use", "id": "a", "name": "add", "input": {}, "server_name": "toolbox"}
RESULT: Any = {"type": "mcp_tool_result", "tool_use_id": "a", "content": "5"}
SUM = "Let me see. " + called("add", a=2, b=3)


@pytest.fixture
def model(tmp_path: Path) -> Turns:
    return Turns(Tokenizer(byte_level(tmp_path)), SUM, "It is 5.")


@pytest.fixture
def client(model: Turns) -> Iterator[anthropic.Anthropic]:
    with (
        serve_scripted(model, toolbox=InProcess) as url,
        anthropic.Anthropic(base_url=url, api_key="any", max_retries=0, timeout=60) as client,
    ):
        yield client


def shapes(content: Any) -> list[tuple[Any, ...]]:
    """Each block's type, and what it says."""
    found: list[tuple[Any, ...]] = []
    for block in content:
        if block.type in ("tool_use", "mcp_tool_use"):
            found.append((block.type, block.name, block.input))
        elif block.type == "mcp_tool_result":
            found.append((block.type, block.content[0].text, block.is_error))
        else:
            found.append((block.type, block.text))
    return found


def reply(client: anthropic.Anthropic, stream: bool, **body: Any) -> BetaMessage:
    """The message, whole or as the client puts its stream together."""
    if not stream:
        return client.beta.messages.create(**{**BASE, **body})
    with client.beta.messages.stream(**{**BASE, **body}) as events:
        return events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
def test_the_server_answers_calls_of_its_tools(
    client: anthropic.Anthropic, model: Turns, stream: bool
) -> None:
    message = reply(client, stream)
    assert shapes(message.content) == [
        ("text", "Let me see."),
        ("mcp_tool_use", "add", {"a": 2, "b": 3}),
        ("mcp_tool_result", "5", False),
        ("text", "It is 5."),
    ]
    use, result = message.content[1:3]
    assert use.type == "mcp_tool_use"
    assert use.server_name == "toolbox"
    assert result.type == "mcp_tool_result"
    assert result.tool_use_id == use.id
    assert message.stop_reason == "end_turn"
    prompts = sum(len(request.prompt) for request in model.requests)
    assert message.usage.input_tokens == prompts, "the usage is that of both turns"
    assert len(model.requests) == 2
    assert len({request.rid for request in model.requests}) == 1


def test_the_plain_client_reads_the_blocks_too(client: anthropic.Anthropic) -> None:
    with client.messages.stream(**BASE) as events:
        text = "".join(events.text_stream)
        message = events.get_final_message()
    assert text == "Let me see.It is 5."
    use: Any = message.content[1]
    assert (use.type, use.input) == ("mcp_tool_use", {"a": 2, "b": 3})


def test_events_are_in_order(client: anthropic.Anthropic) -> None:
    events = list(client.beta.messages.create(**BASE, stream=True))
    for event in events:
        EVENTS.validate_python(event.to_dict())
    kinds = [event.type for event in events if event.type != "content_block_delta"]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert kinds[1:-2] == ["content_block_start", "content_block_stop"] * 4
    starts = [event.index for event in events if event.type == "content_block_start"]
    assert starts == [0, 1, 2, 3]


def test_a_message_that_is_sent_back_is_the_same_conversation(
    client: anthropic.Anthropic, model: Turns
) -> None:
    message = client.beta.messages.create(**BASE)
    model.texts = ("Yes.",)
    again = {"role": "assistant", "content": message.content}
    messages: Any = [ASK, again, {"role": "user", "content": "Sure?"}]
    client.beta.messages.create(**{**BASE, "messages": messages})
    assert model.prompts[-1].startswith(model.prompts[-2])
    assert "It is 5." in model.prompts[-1]


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_the_client_are_the_clients(
    client: anthropic.Anthropic, model: Turns, stream: bool
) -> None:
    model.texts = (called("add", a=2, b=3) + "\n" + called("weather"), "Warm.")
    tools = [WEATHER, {"type": "toolbox", "name": "add"}]
    message = reply(client, stream, tools=tools)
    assert shapes(message.content) == [
        ("mcp_tool_use", "add", {"a": 2, "b": 3}),
        ("mcp_tool_result", "5", False),
        ("tool_use", "weather", {}),
    ]
    assert message.stop_reason == "tool_use"
    use: Any = message.content[-1]
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "20"}
    again = {"role": "assistant", "content": message.content}
    messages = [ASK, again, {"role": "user", "content": [result]}]
    last = reply(client, stream, tools=tools, messages=messages)
    assert shapes(last.content) == [("text", "Warm.")]
    order = [model.prompts[-1].index(text) for text in ('"add", "arg', '"weather", "arg', "20")]
    assert order == sorted(order)


@pytest.mark.parametrize("stream", [False, True])
def test_calls_are_limited_and_failures_told(
    client: anthropic.Anthropic, model: Turns, stream: bool
) -> None:
    model.texts = (called("fail"), called("add", a=1, b=1))
    message = reply(client, stream, extra_body={"max_calls": 1})
    assert shapes(message.content) == [
        ("mcp_tool_use", "fail", {}),
        ("mcp_tool_result", "Error: 'lost'", True),
        ("mcp_tool_use", "add", {"a": 1, "b": 1}),
        ("mcp_tool_result", "Error: no more calls are run for this request; answer without them.",
         True),
        ("tool_use", "add", {"a": 1, "b": 1}),
    ]  # fmt: skip
    assert message.stop_reason == "tool_use"


def test_a_required_call_is_required_once(client: anthropic.Anthropic, model: Turns) -> None:
    message = reply(client, False, tool_choice={"type": "tool", "name": "add"})
    first, second = (request.sampling.constraint for request in model.requests)
    assert first is not None
    assert first != second
    assert message.stop_reason == "end_turn"


@pytest.mark.parametrize("stream", [False, True])
def test_an_error_in_a_later_turn_is_the_replys(
    client: anthropic.Anthropic, model: Turns, stream: bool
) -> None:
    model.texts, model.fault = (SUM, "long " * 50), (40, RequestError("no more", "messages"))
    with pytest.raises(anthropic.APIStatusError, match="no more"):
        reply(client, stream)
    assert len(model.requests) == 2


def test_a_cut_call_is_not_run(client: anthropic.Anthropic, model: Turns) -> None:
    model.texts, model.finish = (SUM[:-20],), Finish("length")
    message = reply(client, False)
    assert [block.type for block in message.content] == ["text", "tool_use"]
    assert message.stop_reason == "model_context_window_exceeded"
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"tools": [{"type": "toolbox", "name": "sub"}]}, "tools[0].name is 'sub'; the toolbox"),
        ({"tools": [{"type": "toolbox", "input_schema": {}}]}, "tools[0] has 'input_schema'"),
        ({"max_calls": 0}, "max_calls is 0; it must be"),
        ({"max_calls": 129}, "max_calls is 129; it must be"),
        ({"messages": [ASK, {"role": "assistant", "content": [RESULT]}]},
         "messages[1].content[0].tool_use_id is 'a', which no tool_use before it has"),
        ({"messages": [{"role": "user", "content": [RESULT]}]},
         "messages[0].content[0] is of type 'mcp_tool_result', which has no place there"),
        ({"messages": [ASK, {"role": "assistant", "content": [USE]}]},
         "messages ends with a tool_use"),
        ({"messages": [ASK, {"role": "assistant", "content": [USE, USE]}]},
         "messages[1].content[1].id is 'a', as in an earlier block"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_bad_requests_are_named(model: Turns, body: dict[str, Any], said: str, path: str) -> None:
    with serve_scripted(model, toolbox=InProcess) as url:
        response = httpx.post(url + path, json={**BASE, **body})
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]


def test_a_server_without_a_toolbox_says_so(model: Turns) -> None:
    with serve_scripted(model) as url:
        response = httpx.post(f"{url}/v1/messages", json=BASE)
    assert response.status_code == 400
    assert "this server has no toolbox (--toolbox)" in response.json()["error"]["message"]


def test_tokens_of_the_tools_are_counted(client: anthropic.Anthropic) -> None:
    plain = {key: value for key, value in BASE.items() if key not in ("max_tokens", "tools")}
    less = client.messages.count_tokens(**plain).input_tokens
    assert client.messages.count_tokens(**plain, tools=[TOOLBOX]).input_tokens > less
