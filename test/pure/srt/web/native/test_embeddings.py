"""/v1/embeddings and /encode over the real engine, with a worker whose states are known."""

from __future__ import annotations

import math
import struct
import time
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from helpers.http_server import Served, is_error, serve_text
from helpers.text_worker import hidden_state
from sglang.srt.config import Config
from sglang.srt.requests.completion import readout as reading
from sglang.srt.runtime import vectors as embeddings

WIDTH = 4


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer"), running=8, queued=4096) as server:
        server.client.golden()
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    before = served.client.golden()
    yield served.client
    served.worker.seconds = 0.0
    served.client.idle()
    assert served.client.golden() == before


def raw(served: Served, ids: list[int], pooling: str = "last") -> list[float]:
    places = range(1 if pooling == "mean" else len(ids), len(ids) + 1)
    states = [hidden_state(ids[:i], served.tokenizer.vocab_size) for i in places]
    return [sum(column) / len(states) for column in zip(*states)]


def unit(vector: list[float]) -> list[float]:
    return [value / math.hypot(*vector) for value in vector]


def embed(http: httpx.Client, **body: Any) -> list[list[float]]:
    reply = http.post("/v1/embeddings", json=body)
    assert reply.status_code == 200, reply.text
    data = reply.json()["data"]
    assert [item["index"] for item in data] == list(range(len(data)))
    return [item["embedding"] for item in data]


def test_an_embedding(served: Served, http: httpx.Client) -> None:
    ids = list(served.tokenizer.encode("the lazy dog"))
    found = http.post("/v1/embeddings", json={"input": "the lazy dog", "model": "any"}).json()
    assert found["object"] == "list"
    assert found["model"] == "any"
    (item,) = found["data"]
    assert item["object"] == "embedding"
    assert item["embedding"] == pytest.approx(unit(raw(served, ids)), abs=1e-6)
    assert found["usage"]["prompt_tokens"] == found["usage"]["total_tokens"] == len(ids)
    assert found["usage"]["prompt_tokens_details"]["cached_tokens"] == len(ids) - 1  # golden


def test_every_form_of_input(served: Served, http: httpx.Client) -> None:
    one, two = (list(served.tokenizer.encode(text)) for text in ("hello", "brown fox"))
    want = [pytest.approx(unit(raw(served, ids)), abs=1e-6) for ids in (one, two)]
    assert embed(http, input="hello") == want[:1]
    assert embed(http, input=["hello", "brown fox"]) == want
    assert embed(http, input=one) == want[:1]
    assert embed(http, input=[one, two]) == want
    assert embed(http, input=[two]) == want[1:]


def test_pooling_and_length(served: Served, http: httpx.Client) -> None:
    ids = list(served.tokenizer.encode("the quick brown fox"))
    text = "the quick brown fox"
    for pooling in ("last", "mean"):
        state = raw(served, ids, pooling)
        assert embed(http, input=text, pooling=pooling, normalize=False) == [pytest.approx(state)]
        assert embed(http, input=text, pooling=pooling) == [pytest.approx(unit(state), abs=1e-6)]
        short = embed(http, input=text, pooling=pooling, dimensions=2)
        assert short == [pytest.approx(unit(state[:2]), abs=1e-6)]
    assert embed(http, input=text, dimensions=WIDTH) == embed(http, input=text)


def test_the_server_has_a_default_pooling(tmp_path: Any) -> None:
    with serve_text(tmp_path, Config.of(embedding_pooling="mean")) as server:
        ids = list(server.tokenizer.encode("hello world"))
        (found,) = embed(server.client, input="hello world")
        assert found == pytest.approx(unit(raw(server, ids, "mean")), abs=1e-6)


def test_base64_is_little_endian_float32(http: httpx.Client) -> None:
    (plain,) = embed(http, input="hello")
    (packed,) = embed(http, input="hello", encoding_format="base64")
    assert struct.unpack(f"<{WIDTH}f", b64decode(packed)) == pytest.approx(plain)  # type: ignore[arg-type]


def test_the_openai_client(served: Served, http: httpx.Client) -> None:
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)
    want = embed(http, input=["hello", "fox"])
    found = client.embeddings.create(model="m", input=["hello", "fox"])  # asks for base64
    assert [item.embedding for item in found.data] == [pytest.approx(one) for one in want]
    assert found.usage.prompt_tokens > 0
    floats = client.embeddings.create(
        model="m", input="fox", encoding_format="float", dimensions=3, user="me"
    )
    assert len(floats.data[0].embedding) == 3
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="m", input="fox", dimensions=5)


@pytest.mark.slow
def test_many_inputs_are_one_batch(served: Served, http: httpx.Client) -> None:
    texts = [f"text number {i}" for i in range(embeddings.MAX_INPUTS)]
    before = served.client.stats()
    found = embed(http, input=texts)
    after = served.client.idle()
    assert after["finished"] - before["finished"] == len(texts)
    assert after["passes"] - before["passes"] < len(texts), "requests are batched"
    for i in (0, 1, 777, 2047):
        ids = list(served.tokenizer.encode(texts[i]))
        assert found[i] == pytest.approx(unit(raw(served, ids)), abs=1e-6)


def test_a_long_list_lets_others_in(
    served: Served, http: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "WINDOW", 100)
    most = 0
    begin = reading.Reading.begin

    def counted(self: reading.Reading) -> None:
        nonlocal most
        begin(self)
        most = max(most, served.state.runtime.completion.pending)

    monkeypatch.setattr(reading.Reading, "begin", counted)
    prompts = [[5 + i % 90] * 30 for i in range(20)] + [[7] * 150] + [[9] * 30]
    for vector, ids in zip(embed(http, input=prompts), prompts, strict=True):
        assert vector == pytest.approx(unit(raw(served, ids)), abs=1e-6)
    assert most == 3


def test_encode(served: Served, http: httpx.Client) -> None:
    ids = list(served.tokenizer.encode("hello"))
    one = http.post("/encode", json={"text": "hello", "rid": "mine"}).json()
    assert one["embedding"] == pytest.approx(unit(raw(served, ids)), abs=1e-6)
    assert one["meta_info"]["id"] == "mine"
    assert one["meta_info"]["prompt_tokens"] == len(ids)
    assert http.post("/encode", json={"input_ids": ids}).json()["embedding"] == one["embedding"]
    both = http.post("/encode", json={"text": ["hello", "fox"], "rid": "mine"}).json()
    assert [item["meta_info"]["id"] for item in both] == ["mine-0", "mine-1"]
    assert both[0]["embedding"] == one["embedding"]
    assert len(http.post("/encode", json={"input_ids": [ids]}).json()) == 1
    mean = http.post("/encode", json={"text": "hello you", "pooling": "mean"}).json()
    assert mean["meta_info"]["cached_tokens"] == 0


LONG = [1] * 1025
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({}, "input", "text"),
    ({"input": ""}, "input", "empty"),
    ({"input": []}, "input", "list"),
    ({"input": [[]]}, "input", "empty"),
    ({"input": ["a", ""]}, "input", "input[1]"),
    ({"input": ["a", [1]]}, "input", "mixes"),
    ({"input": [1, "a"]}, "input", "mixes"),
    ({"input": [1, True]}, "input", "mixes"),
    ({"input": {"a": 1}}, "input", "text"),
    ({"input": [1, -1]}, "input", "-1"),
    ({"input": [10**6]}, "input", "1000000"),
    ({"input": [[1], [2**63]]}, "input", "input[1]"),
    ({"input": [[1], LONG]}, "input", "1025"),
    ({"input": ["a"] * 2049}, "input", "2048"),
    ({"input": "a", "dimensions": 0}, "dimensions", "at least 1"),
    ({"input": "a", "dimensions": 5}, "dimensions", "4"),
    ({"input": "a", "dimensions": 2**63}, "dimensions", "4"),
    ({"input": "a", "encoding_format": "hex"}, "encoding_format", "base64"),
    ({"input": "a", "pooling": "max"}, "pooling", "mean"),
    ({"input": "a", "truncate_prompt_tokens": 3}, "truncate_prompt_tokens", "not available"),
    ({"input": "a", "cache_salt": "x" * 2000}, "cache_salt", "1024"),
    ({"input": "a", "priority": 2**40}, "priority", "32 bits"),
]


@pytest.mark.parametrize(("body", "param", "word"), REFUSED, ids=range(len(REFUSED)))
def test_bad_input_is_named(
    http: httpx.Client, body: dict[str, Any], param: str, word: str
) -> None:
    before = http.get("/get_server_info").json()["stats"]["received"]
    error = is_error(http.post("/v1/embeddings", json=body), 400)
    assert error["param"] == param, error
    assert word in error["message"]
    if param != "encoding_format":
        native = {"text" if key == "input" else key: value for key, value in body.items()}
        is_error(http.post("/encode", json=native), 400)
    after = http.get("/get_server_info").json()["stats"]["received"]
    assert after == before, "refused before anything is computed"


def test_both_prompts_at_once_are_refused(http: httpx.Client) -> None:
    is_error(http.post("/encode", json={"text": "a", "input_ids": [1]}), 400)


@pytest.mark.slow
def test_a_client_that_leaves_ends_its_readings(served: Served, http: httpx.Client) -> None:
    served.worker.seconds = 0.05
    before = served.client.stats()
    body = {"input": [f"something {i} that nobody waits for" for i in range(300)]}
    connection = served.open(body, "/v1/embeddings")
    deadline = time.monotonic() + 60
    while served.client.stats()["waiting"] == 0:
        assert time.monotonic() < deadline
    connection.close()
    after = served.client.idle()
    assert after["aborted"] > before["aborted"]


def test_an_abort_by_name(served: Served, http: httpx.Client) -> None:
    served.worker.seconds = 0.2
    connection = served.open({"input": ["a", "b"] * 20, "rid": "doomed"}, "/v1/embeddings")
    deadline = time.monotonic() + 60
    while served.client.post("/abort_request", json={"rid": "doomed"}).json()["aborted"] == 0:
        assert time.monotonic() < deadline
    with connection:
        assert b"400" in connection.recv(1000)


def test_salts_keep_texts_apart(http: httpx.Client) -> None:
    def cached(salt: str) -> int:
        body = {"input": "a text of its own", "cache_salt": salt}
        usage = http.post("/v1/embeddings", json=body).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert cached("one") == 0
    assert cached("two") == 0
    assert cached("one") > 0
