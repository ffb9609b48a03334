"""Streams of /generate: deltas that add up to the answer, and cumulative ones of bounded size."""

from __future__ import annotations

import json
import re
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
NUMBERED = re.compile(rb"^id: [0-9:]+\ndata: ")
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
    return [NUMBERED.sub(b"", event) for event in found]


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


# -- output_ids ------------------------------------------------------------------------------------

GOES_ON = {"max_new_tokens": 30, "ignore_eos": True, "seed": 3, "stop": ["zz"]}


@pytest.mark.parametrize("incremental", [False, True])
def test_a_stream_goes_on_behind_output_ids(http: httpx.Client, incremental: bool) -> None:
    """The first event has the text of the given tokens too; log-probabilities are of the others."""
    body = {"text": "the quick", "sampling_params": GOES_ON, "return_logprob": True}
    answer = whole(http, **body)
    ids = answer["output_ids"]
    for given in (1, 13, len(ids)):
        more = {**body, "output_ids": ids[:given], "incremental_streaming_output": incremental}
        assert whole(http, **body, output_ids=ids[:given])["output_ids"] == ids
        found = [json.loads(event) for event in stream(http, **more)]
        last = found[-1]["meta_info"]
        entries = last["output_token_logprobs"]
        text, tokens = found[-1]["text"], found[-1]["output_ids"]
        if incremental:
            text = "".join(event["text"] for event in found)
            tokens = [token for event in found for token in event["output_ids"]]
            entries = [e for x in found for e in x["meta_info"]["output_token_logprobs"]]
        assert (text, tokens) == (answer["text"], ids)
        assert entries == answer["meta_info"]["output_token_logprobs"][given:]
        assert last["completion_tokens"] == len(ids)
        assert last["prompt_tokens"] == answer["meta_info"]["prompt_tokens"]
        assert last["finish_reason"] == answer["meta_info"]["finish_reason"]


def test_several_texts_go_on_each_from_its_own(http: httpx.Client) -> None:
    body = {"text": ["the quick", "a lazy"], "sampling_params": GOES_ON}
    answers = whole(http, **body)
    given = [answers[0]["output_ids"][:7], []]
    found = whole(http, **body, output_ids=given)
    assert [each["text"] for each in found] == [each["text"] for each in answers]
    parked = whole(
        http,
        text="the quick",
        sampling_params=GOES_ON,
        output_ids=given[0],
        park={"deadline_seconds": 5},
    )
    handle = parked["meta_info"]["finish_reason"]["resume"]
    more = whole(http, resume=handle, text=" and", sampling_params={"max_new_tokens": 2})
    ids = len(answers[0]["output_ids"])
    assert more["meta_info"]["prompt_tokens"] > ids
    assert whole(http, **body)[0]["text"] == answers[0]["text"]


REFUSED = [
    ({"output_ids": [[1], [2]]}, "output_ids has 2 entries for 1 prompts"),
    ({"output_ids": ["a"]}, "output_ids must be text or a list of token ids"),
    ({"output_ids": [[1], "a"], "text": ["a", "b"]}, "no list of token ids for each prompt"),
    ({"output_ids": [1 << 40]}, "output_ids holds token id 1099511627776"),
    ({"output_ids": [1 << 20]}, "output_ids holds 1048576; ids are 0 to"),
    ({"output_ids": [1] * 31}, "output_ids has 31 tokens, of at most 30"),
    ({"output_ids": [1], "sampling_params": {"n": 2}}, "n must be 1"),
    ({"output_ids": [1], "return_logprob": True, "logprob_start_len": 0}, "it must be -1"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED)
def test_output_ids_that_nothing_may_follow(
    http: httpx.Client, fields: dict[str, Any], message: str
) -> None:
    reply = http.post("/generate", json={"text": "a", "sampling_params": GOES_ON, **fields})
    assert message in is_error(reply, 400)["message"]


def test_output_ids_do_not_go_with_sessions_and_resume(http: httpx.Client) -> None:
    parked = whole(http, text="a", sampling_params=GOES_ON, park={"deadline_seconds": 5})
    handle = parked["meta_info"]["finish_reason"]["resume"]
    reply = http.post("/generate", json={"resume": handle, "output_ids": [1]})
    assert "output_ids is given with resume" in is_error(reply, 400)["message"]
    name = http.post("/open_session", json={"capacity_of_str_len": 100}).json()
    body = {"text": "a", "sampling_params": GOES_ON, "output_ids": [1]}
    reply = http.post("/generate", json={**body, "session_params": {"id": name}})
    assert "and output_ids; send others without session_params" in is_error(reply, 400)["message"]
    http.post("/close_session", json={"session_id": name})


@pytest.mark.parametrize("count", [1, 2])
def test_events_are_numbered_by_the_tokens_so_far(http: httpx.Client, count: int) -> None:
    settings = {**GOES_ON, "n": count}
    body = {"text": "the quick", "sampling_params": settings, "stream": True}
    for incremental in (False, True):
        body["incremental_streaming_output"] = incremental
        reply = http.post("/generate", json=body).text
        seen: dict[str, int] = {}
        for block in reply.split("\n\n")[:-2]:
            name, data = block.split("\n")
            item = json.loads(data.removeprefix("data: "))
            *of, number = name.removeprefix("id: ").split(":")
            assert of == ([str(item["index"])] if count > 1 else [])
            before = seen.get("".join(of), 0) if incremental else 0
            seen["".join(of)] = int(number)
            assert int(number) == before + len(item["output_ids"])
        assert len(seen) == count
