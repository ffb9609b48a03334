"""/v1/completions: prompts, echo, log-probabilities, best_of and streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import httpx
import openai
import pytest
from helpers import http_server
from helpers.http_server import Served, is_error, serve_text
from helpers.text_worker import logprob_of
from helpers.toy_tokenizer import sentencepiece

GREEDY = {"temperature": 0, "max_tokens": 6, "ignore_eos": True}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer"), running=64, queued=512) as server:
        server.client.golden()
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    before = served.client.golden()
    yield served.client
    served.client.idle()
    assert served.client.golden() == before


def complete(http: httpx.Client, **body: Any) -> Any:
    reply = http.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def stream(http: httpx.Client, **body: Any) -> list[Any]:
    reply = http.post("/v1/completions", json={**body, "stream": True})
    assert reply.status_code == 200, reply.text
    lines = [line for line in reply.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


# -- prompts --------------------------------------------------------------------------------------


def test_lists_of_texts_and_of_ids(served: Served, http: httpx.Client) -> None:
    texts = ["hello", "brown fox", "the dog"]
    ids = [list(served.tokenizer.encode(text)) for text in texts]
    of_texts = complete(http, prompt=texts, **GREEDY)
    of_ids = complete(http, prompt=ids, **GREEDY)
    shown = [choice["text"] for choice in of_texts["choices"]]
    assert [choice["text"] for choice in of_ids["choices"]] == shown
    assert [choice["index"] for choice in of_ids["choices"]] == [0, 1, 2]
    assert of_ids["usage"]["prompt_tokens"] == sum(map(len, ids))
    for i, text in enumerate(texts):
        assert complete(http, prompt=text, **GREEDY)["choices"][0]["text"] == shown[i]
        assert complete(http, prompt=ids[i], **GREEDY)["choices"][0]["text"] == shown[i]
    seen: dict[int, str] = {}
    for event in stream(http, prompt=texts, **GREEDY):
        (choice,) = event["choices"]
        seen[choice["index"]] = seen.get(choice["index"], "") + choice["text"]
    assert [seen[i] for i in range(3)] == shown


def test_a_missing_prompt_is_the_beginning_of_a_sequence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, http: httpx.Client
) -> None:
    assert is_error(http.post("/v1/completions", json={}), 400)["param"] == "prompt"
    monkeypatch.setattr(http_server, "byte_level", sentencepiece)
    with serve_text(tmp_path) as server:
        for body in ({}, {"prompt": None}, {"prompt": ""}):
            found = complete(server.client, **body, **GREEDY, return_token_ids=True)
            assert found["choices"][0]["prompt_token_ids"] == [1]
        bare = {"prompt": "hello", "add_special_tokens": False, "return_token_ids": True}
        found = complete(server.client, **bare, **GREEDY)
        ids = list(server.tokenizer.encode("hello"))
        assert [1, *found["choices"][0]["prompt_token_ids"]] == ids


# -- echo and log-probabilities -------------------------------------------------------------------


@pytest.mark.parametrize("most", [0, 1, 4])
def test_echo(http: httpx.Client, most: int) -> None:
    body = {"prompt": ["hello wörld", "fox"], "temperature": 0, "max_tokens": most, "n": 2,
            "ignore_eos": True}  # fmt: skip
    plain = complete(http, **body)["choices"]
    echoed = complete(http, **body, echo=True)["choices"]
    for i, (choice, echo) in enumerate(zip(plain, echoed)):
        assert echo["text"] == ["hello wörld", "fox"][i // 2] + choice["text"]
        assert echo["finish_reason"] == "length"
        assert echo["logprobs"] is None
    seen: dict[int, str] = {}
    for event in stream(http, **body, echo=True):
        (choice,) = event["choices"]
        seen[choice["index"]] = seen.get(choice["index"], "") + choice["text"]
    assert [seen[i] for i in range(4)] == [choice["text"] for choice in echoed]


def test_a_harness_scores_a_continuation(served: Served, http: httpx.Client) -> None:
    """A request as lm-eval sends it: ids, echo, one most likely token, and one sampled token that
    it cuts off."""
    context, rest = (list(served.tokenizer.encode(text)) for text in ("the quick", " brown fox"))
    ids, vocab = context + rest, served.tokenizer.vocab_size
    body = {"prompt": [ids, context], "temperature": 0, "logprobs": 1, "echo": True, "seed": 1234}
    for most in (0, 1):
        found = complete(http, **body, max_tokens=most)
        lines = found["choices"][0]["logprobs"]
        values = lines["token_logprobs"][len(context) : len(ids)]
        want = [logprob_of(ids[:i], ids[i], vocab) for i in range(len(context), len(ids))]
        assert values == pytest.approx(want)
        assert len(lines["tokens"]) == len(lines["top_logprobs"]) == len(ids) + most
        for token, top in zip(lines["tokens"][1:], lines["top_logprobs"][1:]):
            assert token in top
        assert lines["text_offset"][0] == 0
        assert found["usage"]["completion_tokens"] == 2 * most


def test_streamed_scores_are_the_same(served: Served, http: httpx.Client) -> None:
    body = {"prompt": "hello wörld", "echo": True, "logprobs": 2, **GREEDY}
    whole = complete(http, **body)["choices"][0]["logprobs"]
    served.worker.seconds = 0.05
    events = stream(http, **body)
    parts = [one for event in events if (one := event["choices"][0]["logprobs"])]
    served.worker.seconds = 0.0
    assert len(parts) > 1  # tokens that wait for a slow stream are one chunk
    assert {key: [x for part in parts for x in part[key]] for key in whole} == whole


def check_offsets(choice: dict[str, Any], hidden: tuple[str, ...]) -> None:
    lines, text = choice["logprobs"], choice["text"]
    assert lines["text_offset"] == sorted(lines["text_offset"])
    for token, offset in zip(lines["tokens"], lines["text_offset"]):
        if not token.startswith(("bytes:", *hidden)):
            assert text[offset : offset + len(token)] == token


def test_offsets_are_places_in_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, http: httpx.Client
) -> None:
    for prompt in ("hello wörld 🙂", [[300, 5, 200, 201, 70]]):
        found = complete(http, prompt=prompt, echo=True, logprobs=2, **GREEDY)
        check_offsets(found["choices"][0], ("<|",))
    monkeypatch.setattr(http_server, "byte_level", sentencepiece)
    with serve_text(tmp_path) as server:  # this tokenizer puts a token and a space before the text
        found = complete(server.client, prompt="hello world", echo=True, logprobs=1, **GREEDY)
        lines = found["choices"][0]["logprobs"]
        assert lines["tokens"][:4] == ["<s>", " hello", " ", "w"]
        assert lines["text_offset"][:4] == [0, 0, 5, 6]
        assert found["choices"][0]["text"].startswith("hello world")
        assert lines["text_offset"][found["usage"]["prompt_tokens"]] == len("hello world")


def test_token_ids(served: Served, http: httpx.Client) -> None:
    ids = list(served.tokenizer.encode("hello"))
    (choice,) = complete(http, prompt="hello", return_token_ids=True, **GREEDY)["choices"]
    assert choice["prompt_token_ids"] == ids
    assert served.tokenizer.decode(choice["token_ids"], True) == choice["text"]
    assert len(choice["token_ids"]) == 6
    events = stream(http, prompt="hello", return_token_ids=True, **GREEDY)
    parts = [event["choices"][0] for event in events]
    assert [token for part in parts for token in part["token_ids"]] == choice["token_ids"]
    assert [part["prompt_token_ids"] for part in parts] == [ids] + [None] * (len(parts) - 1)


# -- several at once ------------------------------------------------------------------------------


def test_best_of(http: httpx.Client) -> None:
    body = {"prompt": "hello", "max_tokens": 5, "ignore_eos": True, "seed": 3, "logprobs": 0}
    all_of_them = complete(http, **body, n=8)["choices"]
    means = [fmean(choice["logprobs"]["token_logprobs"]) for choice in all_of_them]
    assert len(set(means)) > 4
    order = sorted(range(8), key=lambda i: -means[i])
    found = complete(http, **body, n=3, best_of=8)
    assert [c["text"] for c in found["choices"]] == [all_of_them[i]["text"] for i in order[:3]]
    assert [c["index"] for c in found["choices"]] == [0, 1, 2]
    assert found["usage"]["completion_tokens"] == 40
    del body["logprobs"]
    (best,) = complete(http, **body, best_of=8)["choices"]
    assert best["text"] == all_of_them[order[0]]["text"]
    assert best["logprobs"] is None
    same = complete(http, **body, n=2, best_of=2)["choices"]
    assert [c["text"] for c in same] == [c["text"] for c in all_of_them[:2]]
    assert stream(http, **body, n=2, best_of=2)


def test_usage_in_every_chunk(http: httpx.Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = stream(http, prompt="hello", stream_options=options, **GREEDY)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == counts[-2] == 6
    assert events[-1]["choices"] == []
    plain = stream(http, prompt="hello", stream_options={"include_usage": True}, **GREEDY)
    assert [event["usage"] for event in plain[:-1]] == [None] * (len(plain) - 1)


def test_the_openai_client(served: Served, http: httpx.Client) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    done = client.completions.create(
        model="m", prompt=["hello", "fox"], echo=True, logprobs=2, max_tokens=3, best_of=4, n=2,
        stop=["zzz"], user="me", temperature=0.8, seed=1,
    )  # fmt: skip
    assert len(done.choices) == 4
    lines = done.choices[0].logprobs
    assert lines is not None
    assert lines.text_offset is not None
    assert lines.text_offset[0] == 0
    ids = client.completions.create(model="m", prompt=[[65, 66], [67]], max_tokens=2)
    assert len(ids.choices) == 2
    with pytest.raises(openai.BadRequestError, match="suffix"):
        client.completions.create(model="m", prompt="a", suffix="b")
    with pytest.raises(openai.BadRequestError, match="best_of"):
        list(client.completions.create(model="m", prompt="a", best_of=3, stream=True))


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": ["a", [1]]}, "prompt", "mixes"),
    ({"prompt": [1, "a"]}, "prompt", "mixes"),
    ({"prompt": [1, True]}, "prompt", "mixes"),
    ({"prompt": [[1], [True]]}, "prompt", "prompt[1]"),
    ({"prompt": ["a", ""]}, "prompt", "empty"),
    ({"prompt": [[1], [-1]]}, "prompt", "-1"),
    ({"prompt": [[1], [2**63]]}, "prompt", "prompt[1]"),
    ({"prompt": [[1], [1] * 1025]}, "prompt", "1025"),
    ({"prompt": "a", "n": 4, "best_of": 3}, "best_of", "4"),
    ({"prompt": "a", "best_of": 0}, "best_of", "1"),
    ({"prompt": "a", "best_of": 10**9}, "best_of", "128"),
    ({"prompt": "a", "best_of": 2, "stream": True}, "best_of", "stream"),
    ({"prompt": "a", "n": 10**9}, "n", "128"),
    ({"prompt": "a", "n": 129}, "n", "128"),
    ({"prompt": "a", "logprobs": 129}, "logprobs", "128"),
    ({"prompt": "a", "logprobs": -1}, "logprobs", "128"),
    ({"prompt": "a", "max_tokens": -1}, "max_tokens", "-1"),
    ({"prompt": "a", "suffix": "b"}, "suffix", "not available"),
    ({"prompt": "a", "prompt_logprobs": 0}, "prompt_logprobs", "echo"),
    ({"prompt": "a", "truncate_prompt_tokens": 1}, "truncate_prompt_tokens", "not available"),
    ({"prompt": "a", "use_beam_search": True}, "use_beam_search", "not available"),
    ({"prompt": "a", "bad_words": ["b"]}, "bad_words", "not available"),
    ({"prompt": "a", "allowed_token_ids": [1]}, "allowed_token_ids", "not available"),
    ({"prompt": "a", "prompt_embeds": "b"}, "prompt_embeds", "not available"),
    ({"prompt": "a", "logit_bias": {"1000000": 1}}, "logit_bias", "1000000"),
    ({"prompt": "a", "stop_token_ids": [10**6]}, "stop_token_ids", "1000000"),
]


@pytest.mark.parametrize(("body", "param", "word"), REFUSED, ids=range(len(REFUSED)))
def test_bad_input_is_named(
    http: httpx.Client, body: dict[str, Any], param: str, word: str
) -> None:
    error = is_error(http.post("/v1/completions", json=body), 400)
    assert error["param"] == param, error
    assert word in error["message"], error
    is_error(http.post("/v1/completions", json={**body, "stream": True}), 400)


def test_prompt_scores_past_the_limit_are_refused(tmp_path: Path) -> None:
    """A long prompt times many log-probabilities a token, before any is computed."""
    with serve_text(tmp_path, context=20_000, capacity=20_000) as server:
        body = {"prompt": [1] * 16_000, "echo": True, "logprobs": 128, "max_tokens": 0}
        error = is_error(server.client.post("/v1/completions", json=body), 400)
        assert "1048576" in error["message"]
