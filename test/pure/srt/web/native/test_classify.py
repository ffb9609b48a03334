"""/classify over the real engine, with a worker whose scores are known; what writes is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator

import httpx
import pytest
from helpers.http_server import Served, is_error, serve_text
from helpers.text_worker import hidden_state
from sglang.srt.runtime.classification import probabilities

LABELS = ("red", "green", "blue", "none")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("tokenizer")
    with serve_text(path, purpose="classify", labels=LABELS) as server:
        yield server


def scores(served: Served, text: str) -> list[float]:
    return hidden_state(list(served.tokenizer.encode(text)), served.tokenizer.vocab_size)


def test_labels(served: Served) -> None:
    texts = ["the lazy dog", "hello"]
    found = served.client.post("/classify", json={"input": texts, "model": "m"}).json()
    assert (found["object"], found["model"]) == ("list", "m")
    assert [item["index"] for item in found["data"]] == [0, 1]
    for text, item in zip(texts, found["data"]):
        wanted = scores(served, text)
        assert item["scores"] == pytest.approx(wanted)
        assert item["label"] == LABELS[wanted.index(max(wanted))]
        assert item["num_classes"] == 4
        assert sum(item["probs"]) == pytest.approx(1)
        ratio = item["probs"][2] / item["probs"][3]
        assert ratio == pytest.approx(math.exp(wanted[2] - wanted[3]))
    counted = sum(len(served.tokenizer.encode(text)) for text in texts)
    assert found["usage"]["prompt_tokens"] == counted


def test_vectors_are_scores(served: Served) -> None:
    wanted = pytest.approx(scores(served, "hello"))
    one = served.client.post("/encode", json={"text": "hello"}).json()
    assert one["embedding"] == wanted
    many = served.client.post("/v1/embeddings", json={"input": "hello"}).json()
    assert many["data"][0]["embedding"] == wanted


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "a"}),
        ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": 0},
                       "return_logprob": True, "logprob_start_len": 0}),
        ("/v1/completions", {"model": "m", "prompt": "a"}),
        ("/v1/score", {"query": "a", "items": ["b"], "label_token_ids": [1]}),
    ],
)  # fmt: skip
def test_what_writes_is_refused(served: Served, path: str, body: dict[str, object]) -> None:
    error = is_error(served.client.post(path, json=body), 400)
    assert "use /classify" in error["message"]


def test_a_model_that_writes_has_no_labels(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serve_text(tmp_path_factory.mktemp("tokenizer")) as server:
        error = is_error(server.client.post("/classify", json={"input": "a"}), 400)
        assert "ForSequenceClassification" in error["message"]


def test_other_pooling_is_refused(served: Served) -> None:
    reply = served.client.post("/classify", json={"input": "a", "pooling": "mean"})
    assert is_error(reply, 400)["param"] == "pooling"


def test_probabilities() -> None:
    assert probabilities([0.0]) == [0.5]
    assert probabilities([1000.0]) == [1.0]
    assert probabilities([-1000.0]) == [0.0]
    assert probabilities([1000.0, -1000.0]) == [1.0, 0.0]
    assert probabilities([2.0, 1.0])[0] == pytest.approx(1 / (1 + math.exp(-1)))


def test_the_client_gets_told_of_the_model(served: Served) -> None:
    client: httpx.Client = served.client
    info = client.get("/get_model_info").json()
    assert info["is_generation"] is False
    assert info["labels"] == list(LABELS)
