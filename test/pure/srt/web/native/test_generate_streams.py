"""Streams of /generate: deltas that add up to the answer, and cumulative ones of bounded size."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import sglang as sgl
from helpers.http_server import Served, is_error, serve_text
from sglang.ir.sampling import SamplingParams
from sglang.srt.config import Config
from sglang.srt.core.ints import ints
from sglang.srt.requests.completion.completion_request import CompletionRequest, Logprobs
from sglang.srt.requests.completion.output import Output
from sglang.srt.runtime import generation as native

LOGPROBS = {
    "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2,
    "token_ids_logprob": [7], "return_text_in_logprobs": True,
}  # fmt: skip
OUTPUT = ("output_token_logprobs", "output_top_logprobs", "output_token_ids_logprobs")
INPUT = ("input_token_logprobs", "input_top_logprobs", "input_token_ids_logprobs")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer")) as server:
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    yield served.client
    served.client.idle()


def stream(http: httpx.Client, **body: Any) -> list[bytes]:
    """Events of a stream that ends as it should, undecoded."""
    reply = http.post("/generate", json={**body, "stream": True})
    assert reply.status_code == 200, reply.text
    *found, end, rest = reply.content.split(b"\n\n")
    assert (end, rest) == (b"data: [DONE]", b"")
    return [event.removeprefix(b"data: ") for event in found]


def whole(http: httpx.Client, **body: Any) -> Any:
    reply = http.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def joined(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer that the deltas of one completion add up to."""
    meta = dict(events[-1]["meta_info"])
    meta |= {name: events[0]["meta_info"][name] for name in INPUT if name in meta or LOGPROBS}
    for name in OUTPUT:
        meta[name] = [entry for event in events for entry in event["meta_info"][name]]
    return {
        "text": "".join(event["text"] for event in events),
        "output_ids": [token for event in events for token in event["output_ids"]],
        "meta_info": {k: v for k, v in meta.items() if k not in ("e2e_latency", "cached_tokens")},
    }


def timeless(answer: dict[str, Any]) -> dict[str, Any]:
    meta = answer["meta_info"]
    meta = {k: v for k, v in meta.items() if k not in ("e2e_latency", "cached_tokens")}
    return {**{k: v for k, v in answer.items() if k != "index"}, "meta_info": meta}


@pytest.mark.parametrize("count", [1, 3])
def test_deltas_add_up_to_the_answer(served: Served, http: httpx.Client, count: int) -> None:
    settings = {"max_new_tokens": 40, "ignore_eos": True, "n": count, "seed": 3, "stop": ["zz"]}
    body = {"text": "the quick", "rid": "r", "sampling_params": settings, **LOGPROBS}
    answers = whole(http, **body)
    served.worker.seconds = 0.002  # so that events come one by one
    try:
        found = [json.loads(e) for e in stream(http, **body, incremental_streaming_output=True)]
    finally:
        served.worker.seconds = 0.0
    assert len(found) > count
    for index, answer in enumerate(answers if count > 1 else [answers]):
        own = [event for event in found if event.get("index", 0) == index]
        assert joined(own) == timeless(answer)
        assert not any(name in event["meta_info"] for event in own[1:] for name in INPUT)


def test_the_servers_default_is_a_flag(tmp_path_factory: pytest.TempPathFactory) -> None:
    config = Config.of(incremental_streaming_output=True)
    settings = {"max_new_tokens": 30, "ignore_eos": True, "temperature": 0}
    with serve_text(tmp_path_factory.mktemp("tokenizer"), config) as server:
        http = server.client
        text = whole(http, text="a", sampling_params=settings)["text"]
        server.worker.seconds = 0.002
        deltas = [json.loads(e)["text"] for e in stream(http, text="a", sampling_params=settings)]
        assert "".join(deltas) == text
        assert len(deltas) > 1
        body = {"text": "a", "sampling_params": settings, "incremental_streaming_output": False}
        assert json.loads(stream(http, **body)[-1])["text"] == text
        backend = sgl.RuntimeEndpoint(server.url)  # reads streams of whole texts

        @sgl.function
        def program(s: Any) -> None:
            s += "a" + sgl.gen("x", max_tokens=30, temperature=0, ignore_eos=True)

        state = program.run(backend=backend, stream=True)
        assert "".join(state.text_iter()) == "a" + text


def test_deltas_are_refused_where_tokens_are_replaced(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    config = Config.of(jump_forward="string")
    with serve_text(tmp_path_factory.mktemp("tokenizer"), config) as server:
        body = {"text": "a", "stream": True, "incremental_streaming_output": True}
        error = is_error(server.client.post("/generate", json=body), 400)
        assert error["param"] == "incremental_streaming_output"
        assert "--jump-forward string" in error["message"]


@pytest.mark.slow
def test_a_cumulative_stream_is_not_the_square_of_its_length(http: httpx.Client) -> None:
    tokens = 900
    settings = {"max_new_tokens": tokens, "ignore_eos": True, "temperature": 0}
    body = {"text": "a", "sampling_params": settings, "return_logprob": True,
            "top_logprobs_num": 64, "rid": "r"}  # fmt: skip
    events = stream(http, **body)
    last = json.loads(events[-1])
    assert timeless(last) == timeless(whole(http, **body))
    sizes = [len(event) for event in events]
    # One in full with each token would be 450 times the last one.
    assert sum(sizes) < 2 * native.TOKEN_BYTES * tokens + sizes[-1]
    assert sum(sizes) < 20 * sizes[-1]


def test_short_events_come_with_every_token() -> None:
    for wanted, tokens in ((None, 1000), (Logprobs(), 300), (Logprobs(top=20), 20)):
        request = CompletionRequest(ints([1]), SamplingParams(), wanted, "r")
        streamed, output = native._Streamed(request, False, None), Output(0)
        for _ in range(tokens):
            output.tokens.append(5)
            output.text += "abcd"
            assert streamed.is_due(output, 1)
            streamed.show(output, None)
        assert not streamed.is_due(output, 1)
