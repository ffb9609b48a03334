"""/v1/responses in which the server runs the operator's tools, through OpenAI's own client."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from helpers.http_server import is_error
from helpers.scripted_server import serve_scripted
from helpers.toolbox import InProcess, Turns, called
from helpers.toy_tokenizer import byte_level
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from sglang.srt.requests.completion.output import Finish
from sglang.srt.requests.request_error import RequestError
from sglang.srt.tokenizer import Tokenizer

PATH = "/v1/responses"
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
TOOLBOX: Any = {"type": "toolbox"}
WEATHER: Any = {"type": "function", "name": "weather", "parameters": {"type": "object"}}
ADD = {"type": "function", "name": "add"}
BASE: dict[str, Any] = {"model": "m", "input": "2 + 3?", "tools": [TOOLBOX]}
SUM = "Let me see. " + called("add", a=2, b=3)


@pytest.fixture
def model(tmp_path: Path) -> Turns:
    return Turns(Tokenizer(byte_level(tmp_path)), SUM, "It is 5.")


@pytest.fixture
def client(model: Turns) -> Iterator[openai.OpenAI]:
    with (
        serve_scripted(model, toolbox=InProcess) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield client


def shapes(response: Response) -> list[tuple[Any, ...]]:
    """Each item's type, and what it says."""
    found: list[tuple[Any, ...]] = []
    for item in response.output:
        if item.type == "function_call":
            found.append((item.type, item.status, item.name, item.arguments))
        elif item.type == "mcp_call":
            said: Any = item.output or item.error
            found.append((item.type, item.status, item.name, item.arguments, said))
        else:
            assert item.type == "message"
            found.append((item.type, item.status, item.content[0].text))
    return found


def reply(client: openai.OpenAI, way: str, **body: Any) -> Response:
    """The response: whole, as the client puts its stream together, or of the background."""
    body = {**BASE, **body}
    if way == "whole":
        return client.responses.create(**body)
    if way == "streamed":
        events = list(client.responses.create(**body, stream=True))
        for number, event in enumerate(events):
            EVENT.validate_python(event.to_dict())
            assert event.sequence_number == number
        response: Response = events[-1].response
        done = [event.item for event in events if event.type == "response.output_item.done"]
        assert sorted(done, key=lambda item: str(item.id)) == sorted(
            response.output, key=lambda item: str(item.id)
        )
        return response
    response = client.responses.create(**body, background=True)
    while response.status in ("queued", "in_progress"):
        time.sleep(0.01)
        response = client.responses.retrieve(response.id)
    return response


WAYS = pytest.mark.parametrize("way", ["whole", "streamed", "background"])


@WAYS
def test_the_server_answers_calls_of_its_tools(
    client: openai.OpenAI, model: Turns, way: str
) -> None:
    response = reply(client, way)
    TypeAdapter(Response).validate_python(response.to_dict())
    assert shapes(response) == [
        ("message", "completed", "Let me see."),
        ("mcp_call", "completed", "add", '{"a": 2, "b": 3}', "5"),
        ("message", "completed", "It is 5."),
    ]
    assert response.status == "completed"
    (tool,) = response.tools
    assert tool.type == "mcp"
    assert (tool.server_label, tool.allowed_tools) == ("toolbox", ["add", "fail", "wait"])
    assert response.usage is not None
    prompts = sum(len(request.prompt) for request in model.requests)
    assert response.usage.input_tokens == prompts, "the usage is that of both turns"
    assert {request.rid for request in model.requests} == {response.id}


def test_events_are_those_of_openais_servers(client: openai.OpenAI) -> None:
    events = list(client.responses.create(**BASE, stream=True))
    of_call = [event for event in events if getattr(event, "output_index", None) == 1]
    assert [event.type.removeprefix("response.") for event in of_call] == [
        "output_item.added",
        "mcp_call.in_progress",
        "mcp_call_arguments.delta",
        "mcp_call_arguments.done",
        "mcp_call.completed",
        "output_item.done",
    ]


def test_the_clients_own_stream_reads_the_items(client: openai.OpenAI) -> None:
    with client.responses.stream(**BASE) as stream:
        response = stream.get_final_response()
    assert [item.type for item in response.output] == ["message", "mcp_call", "message"]
    assert response.output_text == "Let me see.It is 5."


@pytest.mark.parametrize("way", ["previous", "sent back", "by reference"])
def test_a_response_that_is_continued_is_the_same_conversation(
    client: openai.OpenAI, model: Turns, way: str
) -> None:
    two = called("add", a=1, b=1) + "\n" + called("fail")
    model.texts = (two, called("add", a=5, b=6), "It is 11.")
    response = client.responses.create(**BASE)
    assert [item.type for item in response.output] == ["mcp_call"] * 3 + ["message"]
    model.texts = ("Yes.",)
    again: Any = {"role": "user", "content": "Sure?"}
    if way == "previous":
        body: dict[str, Any] = {"previous_response_id": response.id, "input": [again]}
    else:
        items: list[Any] = [
            item.to_dict() if way == "sent back" else {"type": "item_reference", "id": item.id}
            for item in response.output
        ]
        body = {"input": [{"role": "user", "content": "2 + 3?"}, *items, again]}
    client.responses.create(**{**BASE, **body})
    assert model.prompts[-1].startswith(model.prompts[-2])
    assert "It is 11." in model.prompts[-1]


@WAYS
def test_calls_of_the_client_are_the_clients(client: openai.OpenAI, model: Turns, way: str) -> None:
    model.texts = (called("add", a=2, b=3) + "\n" + called("weather"), "Warm.")
    tools = [WEATHER, {"type": "toolbox", "name": "add"}]
    response = reply(client, way, tools=tools)
    assert shapes(response) == [
        ("mcp_call", "completed", "add", '{"a": 2, "b": 3}', "5"),
        ("function_call", "completed", "weather", "{}"),
    ]
    call: Any = response.output[-1]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "20"}
    last = reply(client, way, tools=tools, input=[result], previous_response_id=response.id)
    assert shapes(last) == [("message", "completed", "Warm.")]
    order = [model.prompts[-1].index(text) for text in ('"add", "arg', '"weather", "arg', "20")]
    assert order == sorted(order)


@WAYS
def test_calls_are_limited_and_failures_told(client: openai.OpenAI, model: Turns, way: str) -> None:
    model.texts = (called("fail"), called("add", a=1, b=1))
    response = reply(client, way, max_tool_calls=1)
    assert response.max_tool_calls == 1
    first, second, last = shapes(response)
    assert first[:4] == ("mcp_call", "failed", "fail", "{}")
    assert first[4].content == [{"type": "text", "text": "Error: 'lost'"}]
    assert second[:3] == ("mcp_call", "failed", "add")
    assert "no more calls are run" in second[4].content[0]["text"]
    assert last[:3] == ("function_call", "completed", "add")


@pytest.mark.parametrize(
    "choice",
    [
        ADD,
        {"type": "allowed_tools", "mode": "required", "tools": [ADD]},
    ],
)
def test_a_choice_names_tools_of_the_server(
    client: openai.OpenAI, model: Turns, choice: Any
) -> None:
    response = reply(client, "whole", tool_choice=choice)
    assert response.status == "completed"
    first, second = (request.sampling.constraint for request in model.requests)
    assert first is not None
    assert first != second, "a required call is required once"
    assert ('"fail"' in model.prompts[0]) == (choice["type"] == "function")


@pytest.mark.parametrize("way", ["streamed", "background"])
def test_an_error_in_a_later_turn_is_the_responses(
    client: openai.OpenAI, model: Turns, way: str
) -> None:
    model.texts, model.fault = (SUM, "long " * 50), (40, RequestError("no more", "input"))
    response = reply(client, way)
    assert response.status == "failed"
    assert response.error is not None
    assert response.error.message == "no more"
    kinds = [(item.type, item.status) for item in response.output]
    assert kinds == [("message", "completed"), ("mcp_call", "completed"), ("message", "incomplete")]


@WAYS
def test_a_cut_call_is_not_run(client: openai.OpenAI, model: Turns, way: str) -> None:
    model.texts, model.finish = (SUM[:-20],), Finish("length")
    response = reply(client, way)
    assert [(item.type, item.status) for item in response.output] == [
        ("message", "completed"),
        ("function_call", "incomplete"),
    ]
    assert response.status == "incomplete"
    assert len(model.requests) == 1


def test_log_probabilities_are_those_of_the_words(client: openai.OpenAI, model: Turns) -> None:
    model.real = True
    response = reply(client, "streamed", include=["message.output_text.logprobs"])
    for item in (response.output[0], response.output[-1]):
        part: Any = item.content[0]
        assert part.text.endswith("".join(entry.token for entry in part.logprobs).strip())
        assert part.logprobs


def test_a_cancelled_response_ends_its_running_calls(client: openai.OpenAI, model: Turns) -> None:
    model.texts = (called("wait"),)
    response = client.responses.create(**BASE, background=True)
    while not response.output:
        time.sleep(0.01)
        response = client.responses.retrieve(response.id)
    assert shapes(response) == [("mcp_call", "in_progress", "wait", "{}", None)]
    ended = client.responses.cancel(response.id)
    assert ended.status == "cancelled"
    assert shapes(ended) == [("mcp_call", "incomplete", "wait", "{}", None)]
    model.texts = ("Well.",)
    last = reply(client, "whole", previous_response_id=ended.id)
    assert last.output_text == "Well."
    assert '"wait", "arg' not in model.prompts[-1]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"tools": [{"type": "toolbox", "name": "sub"}]}, "tools[0].name is 'sub'; the toolbox"),
        ({"tools": [{"type": "toolbox", "names": []}]}, "tools[0] has 'names'; give type and name"),
        ({"tools": [TOOLBOX, {"type": "function", "name": "add"}]}, "the second one named 'add'"),
        ({"max_tool_calls": 0}, "max_tool_calls is 0; it must be"),
        ({"tool_choice": {"type": "function", "name": "sub"}}, "tool_choice.name is 'sub'"),
        ({"input": [{"type": "mcp_call", "name": "add", "arguments": "{}"}]},
         "input[0].output is None; give a text"),
        ({"input": [{"type": "mcp_call", "name": "add", "arguments": "[]", "output": "5"}]},
         "input[0].arguments"),
        ({"input": [{"type": "mcp_call", "name": "add", "arguments": "{}", "error": {"a": 1}}]},
         "input[0].error is None; give a text"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [PATH, f"{PATH}/input_tokens"])
def test_bad_requests_are_named(model: Turns, body: dict[str, Any], said: str, path: str) -> None:
    with serve_scripted(model, toolbox=InProcess) as url:
        response = httpx.post(url + path, json={**BASE, **body})
    assert said in is_error(response, 400)["message"]


def test_a_server_without_a_toolbox_says_so(model: Turns) -> None:
    with serve_scripted(model) as url:
        response = httpx.post(url + PATH, json=BASE)
    assert "this server has no toolbox (--toolbox)" in is_error(response, 400)["message"]
