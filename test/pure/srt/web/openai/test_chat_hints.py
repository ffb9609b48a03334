"""``kv_hints`` of chats, responses and messages: answered in the reply, and kept as they say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

import anthropic
import httpx
import openai
import pytest
from helpers.hints import KEEPING, emptied, hints
from helpers.http_server import Served, is_error, serve_text
from helpers.toolbox import InProcess, Turns, called
from helpers.toy_tokenizer import byte_level
from sglang.srt.config import Config, ToolboxConfig
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.app import make_app
from sglang.srt.web.server_state import ServerState

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PATHS = [CHAT, RESPONSES, MESSAGES]
ASK = {"role": "user", "content": "the lazy dog"}
WEATHER: dict[str, dict[str, Any]] = {
    CHAT: {"type": "function", "function": {"name": "weather"}},
    RESPONSES: {"type": "function", "name": "weather"},
    MESSAGES: {"name": "weather", "input_schema": {"type": "object"}},
}
PARTS = {CHAT: "choices", RESPONSES: "output", MESSAGES: "content"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("toy"), Config.of(max_parked_per_key=2)) as served:
        yield served


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(byte_level(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(autouse=True)
def clean(served: Served) -> Iterator[None]:
    yield from emptied(served)


def body(path: str, messages: Sequence[dict[str, Any]] = (ASK,), **more: Any) -> dict[str, Any]:
    said = "input" if path == RESPONSES else "messages"
    limit = {RESPONSES: "max_output_tokens"}.get(path, "max_tokens")
    return {said: list(messages), limit: 64, "temperature": 0, **more}


def answers_of(path: str, reply: httpx.Response) -> list[tuple[str, str]]:
    """The answers of a reply; those of a stream are in the event of its end alone."""
    if reply.headers["content-type"].startswith("application/json"):
        found = reply.json()
    else:
        lines = [line[6:] for line in reply.text.splitlines() if line.startswith("data: {")]
        having = [json.loads(line) for line in lines if "kv_hints" in line]
        (found,) = having or [{}]
        if path == CHAT:
            assert found["choices"][0]["finish_reason"]
        else:
            assert found["type"] in ("response.completed", "message_delta")
            found = found.get("response", found)
    return [(answer["action_id"], answer["outcome"]) for answer in found["kv_hints"]]


def asked(model: Turns, path: str, *bodies: dict[str, Any]) -> tuple[Any, ServerState]:
    """The last reply."""
    state = ServerState(Config.of(), model)  # type: ignore[arg-type]

    async def post() -> httpx.Response:
        state.toolbox = InProcess(ToolboxConfig(), state.metrics.tool_ran)
        transport = httpx.ASGITransport(make_app(state), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            for sent in bodies:
                reply = await client.post(path, json=sent)
            return reply

    return asyncio.run(post()), state


@pytest.mark.parametrize(("kind", "outcome"), KEEPING)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_a_kept_context_goes_on(
    tokenizer: Tokenizer, path: str, kind: str, outcome: str, stream: bool
) -> None:
    model = Turns(tokenizer, "Fine.")
    model.real = True
    first = body(path, kv_hints=hints(kind, "kv.share", ttl_seconds=60), stream=stream)
    reply, _ = asked(model, path, first)
    assert answers_of(path, reply) == [("a0", outcome), ("a1", "rejected")]
    again = [ASK, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "so"}]
    model.requests.clear()
    after, _ = asked(model, path, first, body(path, again))
    before, behind = model.requests
    assert before.resumed is None
    assert behind.resumed is not None
    assert "kv_hints" not in after.json(), "no hints, no answers"


@pytest.mark.parametrize("kind", ["kv.retain", "kv.demote"])
@pytest.mark.parametrize("path", PATHS)
def test_the_engine_keeps_the_context(served: Served, path: str, kind: str) -> None:
    sent = body(path, kv_hints=hints(kind, ttl_seconds=60))
    reply = served.client.post(path, json=sent)
    assert answers_of(path, reply) == [("a0", "accepted")]
    assert served.state.runtime.parked.counts()["parked"] == 1
    for content in ("another", "third"):
        asks = [{**ASK, "content": content}]
        full = served.client.post(path, json=body(path, asks, kv_hints=hints(kind)))
        assert answers_of(path, full) == [("a0", "accepted")]
    assert served.state.runtime.parked.counts()["parked"] == 2, "the oldest gives way"


@pytest.mark.parametrize("path", PATHS)
def test_a_hint_that_is_rejected_changes_no_answer(served: Served, path: str) -> None:
    def written(kv_hints: dict[str, Any]) -> tuple[httpx.Response, str]:
        reply = served.client.post(path, json=body(path, kv_hints=kv_hints))
        parts = reply.json()[PARTS[path]]
        for part in parts:
            part.pop("id", None)
        return reply, json.dumps(parts)

    plain, text = written(hints())
    assert "kv_hints" not in plain.json(), "no action, no answer"
    found, same = written(hints("kv.prefetch", "kv.x"))
    assert same == text
    assert answers_of(path, found) == [("a0", "rejected"), ("a1", "rejected")]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"kv_hints": {**hints(), "protocol_version": "9"}}, "kv_hints.protocol_version"),
        ({"kv_hints": hints(*["kv.retain"] * 17)}, "kv_hints.actions"),
        ({"kv_hints": hints("kv.pin", ttl_seconds=-1)}, "kv_hints.actions[0].payload.ttl_seconds"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_bad_hints_are_named(
    served: Served, path: str, change: dict[str, Any], param: str, stream: bool
) -> None:
    reply = served.client.post(path, json=body(path, stream=stream, **change))
    if path == MESSAGES:
        assert reply.status_code == 400
        assert reply.json()["error"]["message"].startswith(param)
    else:
        assert is_error(reply, 400)["param"] == param


def test_hints_are_for_one_chat(served: Served) -> None:
    reply = served.client.post(CHAT, json=body(CHAT, n=2, kv_hints=hints("kv.retain")))
    assert is_error(reply, 400)["param"] == "kv_hints"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "tool"), [("kv.demote", "kv.demote"), ("kv.share", "weather")])
@pytest.mark.parametrize("path", PATHS)
def test_a_reply_that_ends_in_calls_is_kept_once(
    tokenizer: Tokenizer, path: str, kind: str, tool: str, stream: bool
) -> None:
    model = Turns(tokenizer, called("weather"))
    model.real = True
    sent = body(path, tools=[WEATHER[path]], kv_hints=hints(kind), stream=stream)
    reply, state = asked(model, path, sent)
    assert len(answers_of(path, reply)) == 1
    (context,) = state.runtime.parked._all()
    assert context.facts.claim.tool == tool


@pytest.mark.parametrize("path", PATHS)
def test_hints_do_not_go_with_the_servers_tools(tokenizer: Tokenizer, path: str) -> None:
    sent = body(path, tools=[{"type": "toolbox"}], kv_hints=hints("kv.retain"))
    reply, _ = asked(Turns(tokenizer, "x"), path, sent)
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith("kv_hints is given with tools")


def test_clients_of_all_three_read_the_answers(served: Served) -> None:
    url, more = str(served.client.base_url).rstrip("/"), {"kv_hints": hints("kv.pin")}
    with (
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
        anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as claude,
    ):
        ask: Any = [ASK]
        replies: list[Any] = [
            client.chat.completions.create(model="m", messages=ask, max_tokens=4, extra_body=more),
            client.responses.create(
                model="m", input=ask, max_output_tokens=4, extra_body=more, background=False
            ),
            claude.messages.create(model="m", messages=ask, max_tokens=4, extra_body=more),
        ]
        with client.responses.stream(model="m", input=ask, extra_body=more) as responses:
            replies.append(responses.get_final_response())
    assert [reply.kv_hints[0]["outcome"] for reply in replies] == ["clipped"] * 4
    stored = replies[1]
    again = served.client.get(f"{RESPONSES}/{stored.id}").json()
    assert again["kv_hints"] == stored.kv_hints, "a stored response has them too"


def test_a_response_in_the_background_is_kept(served: Served) -> None:
    sent = body(RESPONSES, kv_hints=hints("kv.retain"), background=True)
    id = served.client.post(RESPONSES, json=sent).json()["id"]
    served.client.idle()
    found: dict[str, Any] = {}
    while found.get("status") not in ("completed", "incomplete"):
        found = served.client.get(f"{RESPONSES}/{id}").json()
    assert found["kv_hints"] == [{"action_id": "a0", "outcome": "accepted", "reason": ""}]
    assert served.state.runtime.parked.counts()["parked"] == 1
