"""Chats in which the server runs the operator's tools, on a scripted model."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from helpers.http_server import is_error
from helpers.toolbox import InProcess, Turns, called
from helpers.toy_tokenizer import byte_level
from sglang.srt.config import Config, ToolboxConfig
from sglang.srt.requests.completion.output import Finish
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.app import make_app
from sglang.srt.web.server_state import ServerState

PATH = "/v1/chat/completions"
TOOLBOX = {"type": "toolbox"}
WEATHER = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(byte_level(tmp_path_factory.mktemp("tokenizer")))


def asked(
    model: Turns, *, toolbox: bool = True, messages: Any = None, **body: Any
) -> tuple[httpx.Response, ServerState]:
    state = ServerState(Config.of(), model)  # type: ignore[arg-type]

    async def post() -> httpx.Response:
        if toolbox:
            state.toolbox = InProcess(ToolboxConfig(), state.metrics.tool_ran)
        transport = httpx.ASGITransport(make_app(state), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            messages_ = messages or [{"role": "user", "content": "2 + 3?"}]
            return await client.post(PATH, json={"messages": messages_, "tools": [TOOLBOX], **body})

    return asyncio.run(post()), state


def chunks(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_the_server_answers_calls_of_its_tools(tokenizer: Tokenizer) -> None:
    model = Turns(tokenizer, "Let me see. " + called("add", a=2, b=3), "It is 5.")
    response, state = asked(model)
    body = response.json()
    (choice,) = body["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("It is 5.", "stop")
    call, result = choice["message"]["toolbox_messages"]
    assert call["content"] == "Let me see."
    assert call["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 2, "b": 3}'}
    assert result == {
        "role": "tool", "tool_call_id": call["tool_calls"][0]["id"], "name": "add", "content": "5",
    }  # fmt: skip
    first, second = model.prompts
    assert '"add"' in first
    assert second.startswith(first)
    assert "Let me see." in second
    prompts = [len(request.prompt) for request in model.requests]
    assert body["usage"]["prompt_tokens"] == sum(prompts), "the usage is that of both turns"
    metrics = state.metrics.render().decode()
    assert 'tool_calls_total{model_name="sglang-tiny",tool="add"} 1.0' in metrics
    assert 'tool_failures_total{model_name="sglang-tiny",tool="add"} 0.0' in metrics
    assert 'tool_seconds_total{model_name="sglang-tiny",tool="add"} ' in metrics


def test_a_stream_shows_words_and_what_the_server_did(tokenizer: Tokenizer) -> None:
    model = Turns(tokenizer, "Let me see. " + called("add", a=2, b=3), "It is 5.")
    response, _ = asked(model, stream=True, stream_options={"include_usage": True})
    found = chunks(response)
    deltas = [chunk["choices"][0]["delta"] for chunk in found if chunk["choices"]]
    assert "".join(d.get("content") or "" for d in deltas) == "Let me see.It is 5."
    assert not any(delta.get("tool_calls") for delta in deltas)
    (done,) = [d["toolbox_messages"] for d in deltas if "toolbox_messages" in d]
    assert [message["role"] for message in done] == ["assistant", "tool"]
    reasons = [c["choices"][0]["finish_reason"] for c in found if c["choices"]]
    assert [reason for reason in reasons if reason] == ["stop"]
    assert found[-1]["usage"]["prompt_tokens"] == sum(len(r.prompt) for r in model.requests)


def test_the_next_turn_goes_on_with_the_parked_context(tokenizer: Tokenizer) -> None:
    model = Turns(tokenizer, called("add", a=2, b=3), "It is 5.")
    model.real = True
    response, _ = asked(model)
    assert response.json()["choices"][0]["message"]["content"] == "It is 5."
    first, second = model.requests
    assert first.resumed is None
    assert second.resumed is not None


@pytest.mark.parametrize("stream", [False, True])
def test_calls_of_the_client_are_the_clients(tokenizer: Tokenizer, stream: bool) -> None:
    texts = called("add", a=2, b=3) + "\n" + called("weather")
    model = Turns(tokenizer, texts)
    response, _ = asked(model, stream=stream, tools=[WEATHER, {"type": "toolbox", "name": "add"}])
    if stream:
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks(response)]
        (message,) = [delta for delta in deltas if "tool_calls" in delta]
        (done,) = [d["toolbox_messages"] for d in deltas if "toolbox_messages" in d]
        reason = chunks(response)[-1]["choices"][0]["finish_reason"]
    else:
        (choice,) = response.json()["choices"]
        message, reason = choice["message"], choice["finish_reason"]
        done = message["toolbox_messages"]
    assert [call["function"]["name"] for call in message["tool_calls"]] == ["weather"]
    assert reason == "tool_calls"
    assert [one["tool_calls"][0]["function"]["name"] for one in done[:1]] == ["add"]
    assert done[1]["content"] == "5"
    assert len(model.requests) == 1


def test_calls_are_limited(tokenizer: Tokenizer) -> None:
    model = Turns(tokenizer, called("add", a=1, b=1))
    response, _ = asked(model, max_calls=2)
    (choice,) = response.json()["choices"]
    results = [m["content"] for m in choice["message"]["toolbox_messages"] if m["role"] == "tool"]
    limit = "Error: no more calls are run for this request; answer without them."
    assert results == ["2", "2", limit]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "add"
    assert len(model.requests) == 4
    several = Turns(tokenizer, "\n".join([called("add", a=1, b=1)] * 3), "Two.")
    (choice,) = asked(several, max_calls=2)[0].json()["choices"]
    done = choice["message"]["toolbox_messages"]
    assert [m["content"] for m in done if m["role"] == "tool"] == ["2", "2", limit]
    assert choice["message"]["content"] == "Two."
    default = Turns(tokenizer, called("add", a=1, b=1))
    asked(default)
    assert len(default.requests) == 8 + 2


def test_a_failure_is_told_to_the_model(tokenizer: Tokenizer) -> None:
    model = Turns(tokenizer, called("fail"), "Sorry.")
    response, state = asked(model)
    message = response.json()["choices"][0]["message"]
    assert message["content"] == "Sorry."
    assert message["toolbox_messages"][1]["content"] == "Error: 'lost'"
    assert 'tool_failures_total{model_name="sglang-tiny",tool="fail"} 1.0' in (
        state.metrics.render().decode()
    )


def test_a_call_that_was_required_is_required_once(tokenizer: Tokenizer) -> None:
    named = {"type": "function", "function": {"name": "add"}}
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named]}}
    for choice in ("required", named, allowed):
        model = Turns(tokenizer, called("add", a=2, b=3), "It is 5.")
        response, _ = asked(model, tool_choice=choice)
        assert response.json()["choices"][0]["message"]["content"] == "It is 5."
        kinds = [request.sampling.constraint for request in model.requests]
        assert kinds[0] is not None
        assert kinds[0] != kinds[1]


def test_earlier_calls_come_back_with_the_clients_message(tokenizer: Tokenizer) -> None:
    model = Turns(tokenizer, called("add", a=2, b=3), "It is 5.", "Yes.")
    response, _ = asked(model)
    said = response.json()["choices"][0]["message"]
    messages = [{"role": "user", "content": "2 + 3?"}, said, {"role": "user", "content": "Sure?"}]
    again, _ = asked(model, messages=messages)
    assert again.json()["choices"][0]["message"]["content"] == "Yes."
    assert model.prompts[2].startswith(model.prompts[1]), "the cache has the whole history"
    without, _ = asked(model, messages=messages, toolbox=False, tools=None)
    assert without.status_code == 200
    none = [{"role": "user", "content": "x", "toolbox_messages": None}]
    assert asked(model, messages=none)[0].status_code == 200


@pytest.mark.parametrize("value", ["text", 5, [1], {}, "", 0, False])
def test_earlier_calls_are_a_list_of_messages(tokenizer: Tokenizer, value: Any) -> None:
    messages = [{"role": "user", "content": "x", "toolbox_messages": value}]
    response, _ = asked(Turns(tokenizer, "Yes."), messages=messages)
    assert is_error(response, 400)
    assert "messages[0].toolbox_messages must be a list" in response.text


def test_a_turn_that_is_cut_is_the_answer(tokenizer: Tokenizer) -> None:
    model = Turns(tokenizer, called("add", a=2, b=3)[:-20])
    model.finish = Finish("length")
    (choice,) = asked(model)[0].json()["choices"]
    assert choice["finish_reason"] == "length"
    assert "toolbox_messages" not in choice["message"]
    assert len(model.requests) == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"tools": [{"type": "toolbox", "name": "sub"}]}, "tools[0].name is 'sub'; the toolbox"),
        ({"tools": [{"type": "toolbox", "names": []}]}, "tools[0] has 'names'; give type and name"),
        ({"n": 2}, "n is 2; with tools of the toolbox it must be 1"),
        ({"max_calls": 0}, "max_calls is 0; it must be"),
        ({"toolbox": False}, "tools[0].type is 'toolbox'; this server has no toolbox (--toolbox)"),
        ({"tools": [TOOLBOX, {"type": "function", "function": {"name": "add"}}]},
         "is the second one named 'add'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_bad_requests_are_named(
    tokenizer: Tokenizer, body: dict[str, Any], said: str, stream: bool
) -> None:
    response, _ = asked(Turns(tokenizer, "x"), stream=stream, **body)
    assert is_error(response, 400), response.text
    assert said in response.json()["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [PATH, "/v1/responses", "/v1/messages"])
def test_a_client_that_goes_ends_the_running_tools(
    tokenizer: Tokenizer, path: str, stream: bool
) -> None:
    async def main() -> int:
        model = Turns(tokenizer, "\n".join([called("wait")] * 2))
        model.real = True
        state = ServerState(Config.of(), model)  # type: ignore[arg-type]
        state.toolbox = toolbox = InProcess(ToolboxConfig(), state.metrics.tool_ran)
        said = [{"role": "user", "content": "Go."}]
        asked: dict[str, Any] = {"tools": [TOOLBOX], "max_tokens": 99, "messages": said}
        if path == "/v1/responses":
            asked = {"tools": [TOOLBOX], "input": said}
        data = json.dumps({**asked, "stream": stream}).encode()
        received = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> dict[str, Any]:
            if received:
                return received.pop()
            await toolbox.begun.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None: ...

        headers = [(b"content-type", b"application/json"), (b"host", b"localhost")]
        scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(),
                 "headers": headers, "query_string": b"", "server": ("localhost", 80),
                 "client": ("localhost", 1), "scheme": "http", "http_version": "1.1"}  # fmt: skip
        await asyncio.wait_for(make_app(state)(scope, receive, send), 30)
        assert state.runtime.parked.empty, "no request will go on with its context"
        return toolbox.cancelled

    assert asyncio.run(main()) == 2
