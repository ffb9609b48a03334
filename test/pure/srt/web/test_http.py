"""The HTTP routes and their shapes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from helpers.http_server import Served, is_error, serve_text

GREEDY = {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer")) as server:
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    yield served.client
    served.client.idle()


def generate(http: httpx.Client, **body: Any) -> Any:
    reply = http.post("/generate", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def events(reply: httpx.Response) -> list[Any]:
    """Decoded events; asserts that the stream ends with [DONE]."""
    assert reply.status_code == 200, reply.text
    assert reply.headers["content-type"].startswith("text/event-stream")
    text = re.sub(r"(?m)^id: [0-9:]+\n", "", reply.text)
    lines = [line for line in text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


# -- /generate ------------------------------------------------------------------------------------


def test_a_named_path_is_no_id(http: httpx.Client) -> None:
    """Routes that generate are tried first, but those with parameters behind all others."""
    refused = http.options("/v1/responses/input_tokens")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")


def test_generate(served: Served, http: httpx.Client) -> None:
    found = generate(http, text="hello", sampling_params=GREEDY, rid="mine")
    assert set(found) == {"text", "output_ids", "meta_info"}
    assert served.tokenizer.decode(found["output_ids"], skip_special=True) == found["text"]
    meta = found["meta_info"]
    assert set(meta) == {
        "id", "finish_reason", "prompt_tokens", "completion_tokens", "cached_tokens", "e2e_latency",
        "forward_passes", "forced_tokens", "drafted_tokens", "accepted_tokens",
        "loaded_tokens", "disk_tokens",
    }  # fmt: skip
    assert meta["forward_passes"] == 6
    assert meta["id"] == "mine"
    assert meta["finish_reason"] == {"type": "length", "length": 6}
    ids = list(served.tokenizer.encode("hello"))
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (len(ids), 6)
    again = generate(http, input_ids=ids, sampling_params=GREEDY)
    assert again["output_ids"] == found["output_ids"]
    assert again["meta_info"]["cached_tokens"] == len(ids) - 1


def test_generate_lists_and_n(http: httpx.Client) -> None:
    found = generate(http, text=["hello", "brown fox"], sampling_params=GREEDY, rid=["a", "b"])
    assert [one["meta_info"]["id"] for one in found] == ["a", "b"]
    alone = generate(http, text=["brown fox"], sampling_params=[GREEDY])
    assert isinstance(alone, list)
    assert alone[0]["text"] == found[1]["text"]
    many = generate(http, text="hello", sampling_params={"n": 3, "sampling_seed": 1})
    assert len(many) == 3
    assert len({one["meta_info"]["id"] for one in many}) == 3


def test_generate_stop(http: httpx.Client) -> None:
    whole = generate(http, text="hello", sampling_params={**GREEDY, "max_new_tokens": 40})["text"]
    at = next(i for i in range(8, len(whole)) if whole[i : i + 2].isascii())
    stop = whole[at : at + 2]
    found = generate(
        http, text="hello", sampling_params={**GREEDY, "max_new_tokens": 40, "stop": stop}
    )
    assert found["text"] == whole[: whole.index(stop)]
    assert found["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}


def test_generate_logprobs(served: Served, http: httpx.Client) -> None:
    ids = list(served.tokenizer.encode("hello world"))
    found = generate(
        http, text="hello world", sampling_params=GREEDY, return_logprob=True,
        logprob_start_len=0, top_logprobs_num=2, token_ids_logprob=[5, 6],
        return_text_in_logprobs=True,
    )  # fmt: skip
    meta = found["meta_info"]
    assert [token for _, token, _ in meta["input_token_logprobs"]] == ids
    assert meta["input_token_logprobs"][0][0] is None
    assert all(value < 0 for value, _, _ in meta["input_token_logprobs"][1:])
    assert meta["input_token_logprobs"][0][2] == served.tokenizer.decode(ids[:1])
    assert [token for _, token, _ in meta["output_token_logprobs"]] == found["output_ids"]
    assert meta["input_top_logprobs"][0] is None
    assert [len(top) for top in meta["output_top_logprobs"]] == [2] * 6
    assert [t for _, t, _ in meta["output_token_ids_logprobs"][0]] == [5, 6]
    assert len(meta["input_token_ids_logprobs"]) == len(ids)
    output_only = generate(http, text="hello world", sampling_params=GREEDY, return_logprob=True)
    assert output_only["meta_info"]["input_token_logprobs"] == []
    assert output_only["meta_info"]["output_token_logprobs"][0][2] is None


def test_generate_prefill_only(http: httpx.Client) -> None:
    found = generate(
        http, text="score this", sampling_params={"max_new_tokens": 0}, return_logprob=True,
        logprob_start_len=2,
    )  # fmt: skip
    assert (found["text"], found["output_ids"]) == ("", [])
    assert found["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert len(found["meta_info"]["input_token_logprobs"]) == (
        found["meta_info"]["prompt_tokens"] - 2
    )


def test_generate_stream_is_cumulative(http: httpx.Client) -> None:
    body = {"text": "hello", "sampling_params": GREEDY}
    seen = events(http.post("/generate", json={**body, "stream": True}))
    texts = [one["text"] for one in seen]
    assert all(b.startswith(a) for a, b in itertools.pairwise(texts))
    assert texts[-1] == generate(http, **body)["text"]
    assert [one["meta_info"]["finish_reason"] for one in seen[:-1]] == [None] * (len(seen) - 1)
    assert seen[-1]["meta_info"]["finish_reason"]["type"] == "length"
    assert "index" not in seen[0]
    batch = {"text": ["hello", "fox"], "sampling_params": GREEDY, "stream": True}
    last = {one["index"]: one for one in events(http.post("/generate", json=batch))}
    assert sorted(last) == [0, 1]
    assert last[0]["text"] == texts[-1]


# -- /v1 ------------------------------------------------------------------------------------------


def test_completions(http: httpx.Client) -> None:
    body = {"prompt": "hello", "temperature": 0, "model": "any"}
    found = http.post("/v1/completions", json=body).json()
    assert found["object"] == "text_completion"
    assert found["model"] == "any"
    assert found["usage"]["completion_tokens"] <= 16  # the default
    assert found["usage"]["prompt_tokens_details"] == {
        "cached_tokens": found["usage"]["prompt_tokens_details"]["cached_tokens"]
    }
    many = http.post(
        "/v1/completions", json={"prompt": ["hello", "fox"], "n": 2, "best_of": 2, "seed": 1}
    ).json()
    assert [choice["index"] for choice in many["choices"]] == [0, 1, 2, 3]
    single = http.post("/v1/completions", json={"prompt": [65, 66], "temperature": 0}).json()
    assert single["usage"]["prompt_tokens"] == 2


def test_completions_echo_scores_the_prompt(http: httpx.Client) -> None:
    for extra in ({"max_tokens": 0}, {"max_tokens": 2}, {"max_tokens": 2, "stream": True}):
        body = {"prompt": "hello wörld", "echo": True, "logprobs": 2, "temperature": 0, **extra}
        reply = http.post("/v1/completions", json=body)
        if "stream" in extra:
            parts = [one["choices"][0] for one in events(reply)]
            text = "".join(part["text"] for part in parts)
            lines = {
                key: [x for part in parts if part["logprobs"] for x in part["logprobs"][key]]
                for key in parts[0]["logprobs"]
            }
        else:
            text, lines = reply.json()["choices"][0]["text"], reply.json()["choices"][0]["logprobs"]
        assert text.startswith("hello wörld")
        assert lines["token_logprobs"][0] is None
        assert lines["top_logprobs"][0] is None
        assert len({len(values) for values in lines.values()}) == 1
        for token, offset in zip(lines["tokens"], lines["text_offset"]):
            if not token.startswith(("bytes:", "<|")):  # parts of characters, hidden tokens
                assert text[offset : offset + len(token)] == token


def test_chat(served: Served, http: httpx.Client) -> None:
    body = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        ],
        "temperature": 0,
        "max_completion_tokens": 5,
        "logprobs": True,
        "top_logprobs": 2,
        "ignore_eos": True,
    }
    found = http.post("/v1/chat/completions", json=body).json()
    choice = found["choices"][0]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    content = choice["logprobs"]["content"]
    assert len(content) == 5
    data = b"".join(bytes(entry["bytes"]) for entry in content)
    assert data.decode("utf-8", "replace") == choice["message"]["content"]
    prompt = served.tokenizer.apply_chat_template(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    )
    assert found["usage"]["prompt_tokens"] == len(served.tokenizer.encode(prompt))
    stream = events(
        http.post(
            "/v1/chat/completions",
            json={**body, "stream": True, "stream_options": {"include_usage": True}},
        )
    )
    deltas = [one["choices"][0]["delta"] for one in stream if one["choices"]]
    assert deltas[0]["role"] == "assistant"
    text = "".join(delta.get("content", "") for delta in deltas)
    assert text == choice["message"]["content"]
    parts = [one["choices"][0]["logprobs"] for one in stream if one["choices"]]
    assert [e for part in parts if part for e in part["content"]] == content
    assert stream[-1]["choices"] == []
    assert stream[-1]["usage"]["completion_tokens"] == 5
    assert stream[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert all(one["usage"] is None for one in stream[:-1])


def test_chat_fills_the_context_by_default(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "ignore_eos": True}
    usage = http.post("/v1/chat/completions", json=body).json()["usage"]
    assert usage["total_tokens"] == 1024


def test_continue_final_message(served: Served, http: httpx.Client) -> None:
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Sure,"}]
    body = {"messages": messages, "max_tokens": 1, "continue_final_message": True}
    usage = http.post("/v1/chat/completions", json=body).json()["usage"]
    text = served.tokenizer.apply_chat_template(messages, continue_final_message=True)
    assert text.endswith("Sure,")
    assert usage["prompt_tokens"] == len(served.tokenizer.encode(text))


def test_the_openai_client(served: Served, http: httpx.Client) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="whatever")
    assert [model.id for model in client.models.list()] == ["sglang-tiny"]
    assert client.models.retrieve("sglang-tiny").object == "model"
    done = client.completions.create(model="x", prompt="hello", temperature=0, max_tokens=5)
    stream = client.completions.create(
        model="x", prompt="hello", temperature=0, max_tokens=5, stream=True
    )
    assert "".join(part.choices[0].text for part in stream) == done.choices[0].text
    messages: Any = [{"role": "user", "content": "hello"}]
    extra = {"top_k": 5, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}}
    chat = client.chat.completions.create(
        model="x", messages=messages, max_tokens=5, n=2, seed=1, extra_body=extra
    )
    assert len(chat.choices) == 2
    parts = list(
        client.chat.completions.create(
            model="x", messages=messages, max_tokens=5, seed=1, extra_body=extra, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == chat.choices[0].message.content
    assert parts[-1].usage is not None
    assert parts[-1].usage.prompt_tokens_details is not None
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="x", prompt="hello", temperature=-1)


# -- the rest -------------------------------------------------------------------------------------


def test_information(served: Served, http: httpx.Client) -> None:
    assert http.get("/health").status_code == 200
    assert http.get("/health_generate").status_code == 200
    assert http.get("/get_model_info").json()["is_generation"] is True
    assert http.get("/get_model_info").json()["json_whitespace_pattern"] == "[ ]?"
    assert http.get("/model_info").json() == http.get("/get_model_info").json()
    info = http.get("/server_info").json()
    assert "api_key" not in info
    assert info["context_length"] == 1024
    assert info["internal_states"] == [info["stats"]]
    assert http.get("/tokenizer_info").json()["vocab_size"] == served.tokenizer.vocab_size
    is_error(http.get("/v1/models/other"), 404)
    document = http.get("/openapi.json").json()
    assert "GenerateRequest" in document["components"]["schemas"]
    body = document["paths"]["/generate"]["post"]["requestBody"]
    assert body["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/GenerateRequest"
    }


def test_tokenize(served: Served, http: httpx.Client) -> None:
    ids = http.post("/tokenize", json={"prompt": "Grüße<|im_end|>"}).json()
    assert ids["tokens"] == list(served.tokenizer.encode("Grüße<|im_end|>"))
    assert (ids["count"], ids["max_model_len"]) == (len(ids["tokens"]), 1024)
    both = http.post("/tokenize", json={"text": ["a", "b"]}).json()
    assert both["count"] == [1, 1]
    shown = http.post("/detokenize", json={"tokens": ids["tokens"]}).json()
    assert shown == {"text": "Grüße", "prompt": "Grüße"}
    whole = {"tokens": [ids["tokens"]], "skip_special_tokens": False}
    assert http.post("/detokenize", json=whole).json()["text"] == ["Grüße<|im_end|>"]
    is_error(http.post("/detokenize", json={"tokens": [-1]}), 400)
    is_error(http.post("/tokenize", json={}), 400)


def test_metrics_count(http: httpx.Client) -> None:
    def read() -> dict[str, float]:
        lines = [line for line in http.get("/metrics").text.splitlines() if line[0] != "#"]
        return {
            line.split("{")[0]: float(line.split()[-1]) for line in lines if "bucket" not in line
        }

    before = read()
    generate(http, text=["count me", "count me"], sampling_params=GREEDY)
    generate(http, text="count me", sampling_params={**GREEDY, "n": 2})
    after = read()
    grown = {name.removeprefix("sglang:"): after[name] - before[name] for name in before}
    length = http.post("/tokenize", json={"prompt": "count me"}).json()["count"]
    assert grown["num_requests_total"] == 4
    assert grown["generation_tokens_total"] == 24
    assert grown["prompt_tokens_total"] == 3 * length
    assert grown["cached_tokens_total"] >= length
    assert grown["time_to_first_token_seconds_count"] == 4
    assert grown["e2e_request_latency_seconds_count"] == 4
    for name in ("num_running_reqs", "num_queue_reqs", "num_used_tokens", "token_usage"):
        assert after[f"sglang:{name}"] == 0
    assert 0 < after["sglang:cache_hit_rate"] < 1
    assert "sglang:gen_throughput" in after
    assert "sglang:inter_token_latency_seconds_sum" in after


def test_flush(http: httpx.Client) -> None:
    generate(http, text="remember me", sampling_params=GREEDY)
    assert http.post("/flush_cache").status_code == 200
    again = generate(http, text="remember me", sampling_params=GREEDY)
    assert again["meta_info"]["cached_tokens"] == 0
    assert http.get("/flush_cache").status_code == 200


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("/generate", {"text": "a", "image_data": "x"}, "image_data"),
    ("/generate", {"text": "a", "lora_path": "x"}, "lora_path"),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
    ("/v1/completions", {"prompt": "a", "bad_words": ["b"]}, "bad_words"),
]


@pytest.mark.parametrize(("path", "body", "param"), REFUSED)
def test_what_is_not_there_is_refused_and_named(
    http: httpx.Client, path: str, body: dict[str, Any], param: str
) -> None:
    if "chat" in path:
        body = {"messages": [{"role": "user", "content": "a"}], **body}
    error = is_error(http.post(path, json=body), 400)
    assert (error["param"], error["code"]) == (param, "unsupported")
