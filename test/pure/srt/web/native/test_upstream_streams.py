"""Stream fields that upstream's clients read: cached tokens from the first event on, fields that
are null rather than missing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.http_server import Served, serve_text

GREEDY = {"temperature": 0, "ignore_eos": True}
PROMPT = "the lazy dog and the brown fox"
CHAT = {"messages": [{"role": "user", "content": PROMPT}], **GREEDY, "max_tokens": 6}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer")) as server:
        server.worker.seconds = 0.002  # so that tokens come in several events
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    yield served.client
    served.client.idle()


def events(http: httpx.Client, path: str, **body: Any) -> list[dict[str, Any]]:
    reply = http.post(path, json={**body, "stream": True})
    assert reply.status_code == 200, reply.text
    lines = [line.rpartition("data: ")[2] for line in reply.text.split("\n\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def native(n: int = 1) -> dict[str, Any]:
    return {"text": PROMPT, "sampling_params": {**GREEDY, "max_new_tokens": 6, "n": n}}


@pytest.mark.parametrize("n", [1, 2])
def test_generate_has_cached_tokens_from_the_first_event_on(http: httpx.Client, n: int) -> None:
    for _ in range(2):
        found = events(http, "/generate", **native(n))
        assert len(found) > n
    (count,) = {event["meta_info"]["cached_tokens"] for event in found}
    assert count >= found[0]["meta_info"]["prompt_tokens"] - 1


def test_the_first_event_of_a_prompt_that_is_new_has_none(http: httpx.Client) -> None:
    body = {**native(), "text": "never seen before"}
    found = events(http, "/generate", **body, cache_salt="alone")
    assert {event["meta_info"]["cached_tokens"] for event in found} == {0}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": PROMPT, **GREEDY, "max_tokens": 6}),
    ],
)
def test_usage_chunks_have_cached_tokens_from_the_first_on(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for _ in range(2):
        found = events(http, path, **body, stream_options=options)
    counts = {event["usage"]["prompt_tokens_details"]["cached_tokens"] for event in found}
    assert counts == {found[0]["usage"]["prompt_tokens"] - 1}


def test_every_delta_of_a_chat_has_reasoning_content(http: httpx.Client) -> None:
    for more in ({}, {"logprobs": True}):
        found = events(http, "/v1/chat/completions", **CHAT, **more)
        assert len(found) > 2
        for event in found:
            assert event["choices"][0]["delta"]["reasoning_content"] is None
    whole = http.post("/v1/chat/completions", json=CHAT).json()
    assert whole["choices"][0]["message"]["reasoning_content"] is None


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": PROMPT, **GREEDY, "max_tokens": 6}),
    ],
)
def test_matched_stop_is_null_at_length(
    http: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    last = [event["choices"][0] for event in events(http, path, **body)][-1]
    (whole,) = http.post(path, json=body).json()["choices"]
    for choice in (last, whole):
        assert choice["finish_reason"] == "length"
        assert choice["matched_stop"] is None


def test_a_completion_without_a_token_has_null_logprobs(http: httpx.Client) -> None:
    """Clients read the first entry of these lists, so no chunk has empty ones."""
    body = {"prompt": PROMPT, **GREEDY, "max_tokens": 6, "logprobs": 1}
    (whole,) = http.post("/v1/completions", json=body).json()["choices"]
    found = [event["choices"][0] for event in events(http, "/v1/completions", **body)]
    tokens: list[str] = []
    for choice in found:
        assert choice["logprobs"] is None or choice["logprobs"]["tokens"]
        assert choice["logprobs"] is not None or choice["finish_reason"]
        tokens += choice["logprobs"]["tokens"] if choice["logprobs"] else []
    assert tokens == whole["logprobs"]["tokens"]
    stopped = {**body, "stop": [whole["text"][1:3]], "max_tokens": 1000}
    found = [event["choices"][0] for event in events(http, "/v1/completions", **stopped)]
    assert all(one["logprobs"] is None or one["logprobs"]["tokens"] for one in found)
