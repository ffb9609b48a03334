"""``kv_hints`` of chats: answered in the reply, and kept as they say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from helpers.http_server import Served, is_error, serve_text
from helpers.scripted_server import serve_scripted
from helpers.toolbox import InProcess, Turns, called
from helpers.toy_tokenizer import byte_level
from sglang.srt.config import Config, ToolboxConfig
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.app import make_app
from sglang.srt.web.server_state import ServerState

PATH = "/v1/chat/completions"
ASK = {"role": "user", "content": "the lazy dog"}
WEATHER = {"type": "function", "function": {"name": "weather"}}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("toy"), Config.of(max_parked_per_key=2)) as served:
        yield served


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(byte_level(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(autouse=True)
def clean(served: Served) -> Iterator[None]:
    yield
    served.client.post("/abort_request", json={"abort_all": True})
    served.client.idle()
    served.state.runtime.parked.check()
    assert served.state.runtime.parked.empty


def hints(*kinds: str, **payload: Any) -> dict[str, Any]:
    actions = [
        {"action_id": f"a{i}", "action_type": kind, "action_version": "1.0", "payload": payload}
        for i, kind in enumerate(kinds)
    ]
    return {"protocol_version": "0.1", "message_id": "m", "actions": actions}


def body(kv_hints: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"messages": [ASK], "max_tokens": 4, "temperature": 0, "kv_hints": kv_hints, **more}


@pytest.mark.parametrize(
    ("kind", "outcome"),
    [("kv.retain", "accepted"), ("kv.pin", "clipped"), ("kv.demote", "accepted")],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_kept_context_goes_on(
    tokenizer: Tokenizer, kind: str, outcome: str, stream: bool
) -> None:
    model = Turns(tokenizer, "Fine.")
    model.real = True
    with (
        serve_scripted(model) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        chat: Any = client.chat.completions
        more = {"kv_hints": hints(kind, "kv.share", ttl_seconds=60)}
        if stream:
            chunks = list(chat.create(model="m", messages=[ASK], extra_body=more, stream=True))
            assert chunks[-1].choices[0].finish_reason
            assert not any(hasattr(chunk, "kv_hints") for chunk in chunks[:-1])
            answers = chunks[-1].kv_hints
        else:
            answers = chat.create(model="m", messages=[ASK], extra_body=more).kv_hints
        found = [(answer["action_id"], answer["outcome"]) for answer in answers]
        assert found == [("a0", outcome), ("a1", "rejected")]
        again = [ASK, {"role": "assistant", "content": "Fine."}, {"role": "user", "content": "so"}]
        after = chat.create(model="m", messages=again)
    first, second = model.requests
    assert first.resumed is None
    assert second.resumed is not None
    assert not hasattr(after, "kv_hints"), "no hints, no answers"


@pytest.mark.parametrize("kind", ["kv.retain", "kv.demote"])
def test_the_engine_keeps_the_context(served: Served, kind: str) -> None:
    found = served.client.post(PATH, json=body(hints(kind, ttl_seconds=60))).json()
    assert found["kv_hints"] == [{"action_id": "a0", "outcome": "accepted", "reason": ""}]
    assert served.state.runtime.parked.counts()["parked"] == 1
    another = {**ASK, "content": "another"}
    served.client.post(PATH, json=body(hints(kind), messages=[another]))
    full = served.client.post(PATH, json=body(hints(kind), messages=[ASK, another])).json()
    assert full["kv_hints"][0]["outcome"] == "accepted"
    assert served.state.runtime.parked.counts()["parked"] == 2, "the oldest gives way"


def test_a_hint_that_is_rejected_changes_no_answer(served: Served) -> None:
    plain = served.client.post(PATH, json=body(hints())).json()
    assert "kv_hints" not in plain, "no action, no answer"
    found = served.client.post(PATH, json=body(hints("kv.prefetch", "kv.x"))).json()
    assert found["choices"] == plain["choices"]
    assert [answer["outcome"] for answer in found["kv_hints"]] == ["rejected"] * 2


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"kv_hints": {**hints(), "protocol_version": "9"}}, "kv_hints.protocol_version"),
        ({"kv_hints": hints(*["kv.retain"] * 17)}, "kv_hints.actions"),
        ({"kv_hints": hints("kv.pin", ttl_seconds=-1)}, "kv_hints.actions[0].payload.ttl_seconds"),
        ({"n": 2}, "kv_hints"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_bad_hints_are_named(
    served: Served, change: dict[str, Any], param: str, stream: bool
) -> None:
    reply = served.client.post(PATH, json={**body(hints("kv.retain"), stream=stream), **change})
    assert is_error(reply, 400)["param"] == param


def asked(model: Turns, **more: Any) -> tuple[httpx.Response, ServerState]:
    state = ServerState(Config.of(), model)  # type: ignore[arg-type]

    async def post() -> httpx.Response:
        state.toolbox = InProcess(ToolboxConfig(), state.metrics.tool_ran)
        transport = httpx.ASGITransport(make_app(state), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.post(PATH, json={"messages": [ASK], **more})

    return asyncio.run(post()), state


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("kind", "tool"), [("kv.demote", "kv.demote"), ("kv.share", "weather")])
def test_a_reply_that_ends_in_calls_is_kept_once(
    tokenizer: Tokenizer, kind: str, tool: str, stream: bool
) -> None:
    model = Turns(tokenizer, called("weather"))
    model.real = True
    response, state = asked(model, tools=[WEATHER], kv_hints=hints(kind), stream=stream)
    if stream:
        assert '"kv_hints"' in response.text
    else:
        assert json.loads(response.text)["choices"][0]["finish_reason"] == "tool_calls"
    (context,) = state.runtime.parked._all()
    assert context.facts.claim.tool == tool


def test_hints_do_not_go_with_the_servers_tools(tokenizer: Tokenizer) -> None:
    model = Turns(tokenizer, "x")
    response, _ = asked(model, tools=[{"type": "toolbox"}], kv_hints=hints("kv.retain"))
    assert is_error(response, 400)["param"] == "kv_hints"
