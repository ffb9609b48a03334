"""/v1/score and /v1/rerank."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.http_server import Served, is_error, serve_text
from helpers.text_worker import hidden_state, logprob_of

LABELS = [5, 9, 300]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve_text(tmp_path_factory.mktemp("tokenizer"), queued=4096) as server:
        server.client.golden()
        yield server


@pytest.fixture
def http(served: Served) -> Iterator[httpx.Client]:
    before = served.client.golden()
    yield served.client
    served.client.idle()
    assert served.client.golden() == before


def post(http: httpx.Client, path: str, **body: Any) -> Any:
    reply = http.post(path, json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def probabilities(served: Served, text: str) -> list[float]:
    ids = list(served.tokenizer.encode(text))
    vocab = served.tokenizer.vocab_size
    return [math.exp(logprob_of(ids, label, vocab)) for label in LABELS]


def cosine(served: Served, left: str, right: str) -> float:
    a, b = (
        hidden_state(list(served.tokenizer.encode(text)), served.tokenizer.vocab_size)
        for text in (left, right)
    )
    return sum(x * y for x, y in zip(a, b)) / math.hypot(*a) / math.hypot(*b)


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_labels(served: Served, http: httpx.Client, path: str) -> None:
    body = {"query": "Is it quick? ", "items": ["a fox", "a dog"], "label_token_ids": LABELS}
    found = post(http, path, **body)
    assert found["object"] == "scoring"
    for row, item in zip(found["scores"], ["a fox", "a dog"], strict=True):
        assert row == pytest.approx(probabilities(served, "Is it quick? " + item))
    lengths = [len(served.tokenizer.encode("Is it quick? " + i)) for i in ("a fox", "a dog")]
    assert found["usage"]["prompt_tokens"] == sum(lengths)
    shares = post(http, path, **body, apply_softmax=True)["scores"]
    for share, row in zip(shares, found["scores"]):
        assert share == pytest.approx([value / sum(row) for value in row])
    first = post(http, path, **{**body, "query": " Is it?", "item_first": True})["scores"]
    assert first[1] == pytest.approx(probabilities(served, "a dog Is it?"))
    assert post(http, path, **{**body, "items": "a fox"})["scores"] == found["scores"][:1]


def test_labels_of_ids(served: Served, http: httpx.Client) -> None:
    query, item = (list(served.tokenizer.encode(text)) for text in ("hello", "fox"))
    vocab = served.tokenizer.vocab_size
    want = [math.exp(logprob_of(query + item, label, vocab)) for label in LABELS]
    body = {"query": query, "items": [item, item], "label_token_ids": LABELS}
    assert post(http, "/v1/score", **body)["scores"] == [pytest.approx(want)] * 2


def test_items_share_the_query(http: httpx.Client) -> None:
    query = "a query that is so long that it would be a pity to compute it again " * 3
    items = [f"item {i}" for i in range(20)]
    body = {"query": query, "items": items, "label_token_ids": [1]}
    usage = post(http, "/v1/score", **body)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"] * 0.8


def test_similarities(served: Served, http: httpx.Client) -> None:
    found = post(http, "/v1/score", text_1="fox", text_2=["fox", "lazy dog"], model="m")
    assert (found["object"], found["model"]) == ("list", "m")
    scores = [item["score"] for item in found["data"]]
    want = [1.0, cosine(served, "fox", "lazy dog")]
    assert scores == pytest.approx(want, abs=1e-6)
    assert max(scores) <= 1.0
    pairs = post(http, "/v1/score", text_1=["fox", "hello"], text_2=["lazy dog", "hello"])
    scores = [item["score"] for item in pairs["data"]]
    assert scores == pytest.approx([cosine(served, "fox", "lazy dog"), 1.0], abs=1e-6)


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_rerank(served: Served, http: httpx.Client, path: str) -> None:
    documents = ["lazy dog", "brown fox", "hello", "brown fox"]
    found = post(http, path, query="brown fox", documents=documents, model="m")
    scores = [cosine(served, "brown fox", document) for document in documents]
    order = sorted(range(4), key=lambda i: -scores[i])
    assert [item["index"] for item in found["results"]] == order
    assert order[:2] == [1, 3], "equal ones stay in order"
    for item in found["results"]:
        assert item["relevance_score"] == pytest.approx(scores[item["index"]], abs=1e-6)
        assert "document" not in item
    shaped = [{"text": document, "id": 7} for document in documents]
    body = {"query": "brown fox", "documents": shaped, "top_n": 2, "return_documents": True}
    best = post(http, path, **body)["results"]
    assert [item["document"] for item in best] == [{"text": "brown fox"}] * 2
    assert len(post(http, path, **{**body, "top_n": 100})["results"]) == 4


SCORE: list[tuple[dict[str, Any], str, str]] = [
    ({}, "label_token_ids", "text_1"),
    ({"query": "a", "items": ["b"]}, "label_token_ids", "0 entries"),
    ({"query": "a", "items": ["b"], "label_token_ids": []}, "label_token_ids", "0 entries"),
    ({"query": "a", "items": ["b"], "label_token_ids": [-1]}, "label_token_ids", "-1"),
    ({"query": "a", "items": ["b"], "label_token_ids": [2**63]}, "label_token_ids", ""),
    ({"query": "a", "items": ["b"], "label_token_ids": [1] * 2000}, "label_token_ids", "1024"),
    ({"items": ["b"], "label_token_ids": [1]}, "query", "missing"),
    ({"query": "a", "label_token_ids": [1]}, "items", "text"),
    ({"query": "a", "items": [], "label_token_ids": [1]}, "items", "text"),
    ({"query": "a", "items": [[1]], "label_token_ids": [1]}, "items", "both"),
    ({"query": [1], "items": ["a"], "label_token_ids": [1]}, "items", "both"),
    ({"query": [1], "items": [[2], ["a"]], "label_token_ids": [1]}, "items", "items[1]"),
    ({"query": "", "items": ["a", ""], "label_token_ids": [1]}, "items", "items[1]"),
    ({"query": "a", "items": ["b"] * 2049, "label_token_ids": [1]}, "items", "2048"),
    ({"query": [1] * 1000, "items": [[1] * 25], "label_token_ids": [1]}, "items", "1025"),
    ({"text_1": "a"}, "text_2", "missing"),
    ({"text_2": "a"}, "text_1", "missing"),
    ({"text_1": [], "text_2": ["a"]}, "text_1", "empty"),
    ({"text_1": ["a", "b"], "text_2": ["a"]}, "text_1", "as many"),
    ({"text_1": "a", "text_2": "b", "query": "c"}, "text_1", "or"),
    ({"text_1": ["a", ""], "text_2": ["a", "b"]}, "text_1", "text_1[1]"),
    ({"text_1": "a", "text_2": "b", "pooling": "max"}, "pooling", "mean"),
]
RERANK: list[tuple[dict[str, Any], str, str]] = [
    ({"documents": ["a"]}, "query", "missing"),
    ({"query": "a"}, "documents", "missing"),
    ({"query": "a", "documents": []}, "documents", "empty"),
    ({"query": "", "documents": ["a"]}, "query", "empty"),
    ({"query": "a", "documents": ["b", ""]}, "documents", "documents[1]"),
    ({"query": "a", "documents": [{"title": "b"}]}, "documents", "documents[0]"),
    ({"query": "a", "documents": [{"text": 3}]}, "documents", "documents[0]"),
    ({"query": "a", "documents": [3]}, "documents", ""),
    ({"query": "a", "documents": ["b"], "top_n": 0}, "top_n", "at least 1"),
    ({"query": "a", "documents": ["b"] * 2048}, "documents", "has 2048 entries; at most 2047"),
]


@pytest.mark.parametrize(
    ("path", "body", "param", "word"),
    [("/v1/score", *case) for case in SCORE] + [("/v1/rerank", *case) for case in RERANK],
    ids=range(len(SCORE) + len(RERANK)),
)
def test_bad_input_is_named(
    http: httpx.Client, path: str, body: dict[str, Any], param: str, word: str
) -> None:
    error = is_error(http.post(path, json=body), 400)
    assert error["param"] == param, error
    assert word in error["message"], error


def test_a_shared_query_is_not_multiplied(http: httpx.Client) -> None:
    """A megabyte before each of 2048 items would be two gigabytes."""
    body = {"query": "x" * (1 << 20), "items": ["y"] * 2048, "label_token_ids": [1]}
    error = is_error(http.post("/v1/score", json=body), 400)
    assert error["code"] == "context_length_exceeded"
