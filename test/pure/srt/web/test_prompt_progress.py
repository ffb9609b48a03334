"""``return_progress``: streams that say how much of the prompt is computed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from helpers.http_server import Served, is_error, serve_text

CHUNK = 64
GREEDY = {"temperature": 0, "max_tokens": 4, "ignore_eos": True}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello " * 60}], **GREEDY},
    "/v1/completions": {"prompt": "hello " * 60, **GREEDY},
    "/generate": {
        "text": "hello " * 60,
        "sampling_params": {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True},
    },
}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer"), chunk=CHUNK) as server:
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    yield served.client
    served.client.idle()
    assert served.client.post("/flush_cache").status_code == 200


def streamed(http: httpx.Client, path: str, **more: Any) -> list[dict[str, Any]]:
    reply = http.post(path, json={**BODIES[path], "stream": True, **more})
    assert reply.status_code == 200, reply.text
    lines = [line for line in reply.text.split("\n") if line.startswith("data: {")]
    return [json.loads(line[6:]) for line in lines]


def text_of(event: dict[str, Any]) -> str:
    if "choices" not in event:
        return str(event["text"])
    choice = event["choices"][0]
    return str(choice["text"] if "text" in choice else choice["delta"].get("content") or "")


@pytest.mark.parametrize("path", BODIES)
def test_each_pass_is_reported(http: httpx.Client, path: str) -> None:
    found = streamed(http, path, return_progress=True)
    told = [event["prompt_progress"] for event in found if "prompt_progress" in event]
    total = told[0]["total"]
    assert total > 3 * CHUNK
    ends = [*range(CHUNK, total, CHUNK), total]
    assert [one["processed"] for one in told] == ends
    assert {one["total"] for one in told} == {total}
    assert {one["cache"] for one in told} == {0}
    times = [one["time_ms"] for one in told]
    assert times == sorted(times)
    first = next(i for i, event in enumerate(found) if text_of(event))
    assert all("prompt_progress" not in event for event in found[first:])


@pytest.mark.parametrize("path", BODIES)
def test_the_cache_is_counted(http: httpx.Client, path: str) -> None:
    streamed(http, path)
    found = streamed(http, path, return_progress=True)
    told = [event["prompt_progress"] for event in found if "prompt_progress" in event]
    assert [(one["processed"], one["cache"]) for one in told] == [
        (told[0]["total"], told[0]["total"] - 1)
    ]


@pytest.mark.parametrize("path", BODIES)
def test_a_stream_says_nothing_of_it_unless_it_is_wanted(http: httpx.Client, path: str) -> None:
    plain, wanted = streamed(http, path), streamed(http, path, return_progress=True)
    assert not any("prompt_progress" in event for event in plain)
    assert "".join(map(text_of, wanted[-6:])) != ""
    whole = http.post(path, json={**BODIES[path], "return_progress": True})
    assert whole.status_code == 200
    assert "prompt_progress" not in whole.text


def test_several_prompts_are_told_apart(http: httpx.Client) -> None:
    prompts = ["first " * 40, "other " * 40]
    found = streamed(http, "/v1/completions", prompt=prompts, return_progress=True)
    ended = {
        event["choices"][0]["index"]: event["prompt_progress"]
        for event in found
        if "prompt_progress" in event
    }
    assert sorted(ended) == [0, 1]
    assert all(one["processed"] == one["total"] for one in ended.values())


@pytest.mark.parametrize("path", BODIES)
def test_what_cannot_be_told_is_refused(http: httpx.Client, path: str) -> None:
    own = BODIES[path].get("sampling_params")
    more = {"n": 2} if own is None else {"sampling_params": {**own, "n": 2}}
    body = {**BODIES[path], **more, "stream": True, "return_progress": True}
    error = is_error(http.post(path, json=body), 400)
    assert error["param"] == "return_progress"
    assert "n is 2" in error["message"]


def test_the_openai_client_reads_it(served: Served, http: httpx.Client) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
    body = BODIES["/v1/chat/completions"]
    stream = client.chat.completions.create(
        model="toy", messages=body["messages"], max_tokens=4, stream=True,
        extra_body={"return_progress": True, "ignore_eos": True},
    )  # fmt: skip
    told = [extra["prompt_progress"] for chunk in stream if (extra := chunk.model_extra)]
    assert told[-1]["processed"] == told[-1]["total"]
