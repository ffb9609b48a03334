"""POST /v1/score and /v1/rerank: how well texts go together, by a causal model.

query, items, label_token_ids    probabilities of the labels as the next token
text_1, text_2                   cosine of two embeddings
query, documents                 the same, in order of it
"""

from __future__ import annotations

import asyncio
import math
import time
import uuid
from collections.abc import Iterator, Sequence
from operator import mul
from typing import Any

from sglang.srt.core.ints import Floats
from sglang.srt.core.messages import Distribution, Done
from sglang.srt.http.exchange.error_replies import json_response
from sglang.srt.http.exchange.event_stream import unless_gone
from sglang.srt.http.exchange.json_body import read_body
from sglang.srt.http.openai.embeddings import (
    MAX_INPUTS,
    PoolingFields,
    embed,
    read_asks,
    unit,
    usage,
    vector_of,
)
from sglang.srt.http.prompts import places, prompts_of
from sglang.srt.http.service import Service
from sglang.srt.program.ask import MAX_PROBES
from sglang.srt.program.request_error import RequestError
from starlette.requests import Request
from starlette.responses import Response


class ScoreBody(PoolingFields, kw_only=True):
    """``query``, ``items`` and ``label_token_ids``, or ``text_1`` and ``text_2``."""

    query: str | list[int] | None = None
    items: Any = None
    label_token_ids: list[int] | None = None
    apply_softmax: bool | None = None
    item_first: bool | None = None
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None


class RerankBody(PoolingFields, kw_only=True):
    """``documents`` are texts, or objects with a ``text``."""

    query: str | None = None
    documents: list[str | dict[str, Any]] | None = None
    top_n: int | None = None
    return_documents: bool | None = None


async def score(service: Service, request: Request) -> Response:
    body = await read_body(request, ScoreBody, service.body_limit)
    paired = body.text_1 is not None or body.text_2 is not None
    work = _similarities(service, body) if paired else label_scores(service, body)
    return json_response(await unless_gone(request, work))


async def rerank(service: Service, request: Request) -> Response:
    body = await read_body(request, RerankBody, service.body_limit)
    return json_response(await unless_gone(request, _rerank(service, body)))


# -- by labels ------------------------------------------------------------------------------------


async def label_scores(service: Service, body: ScoreBody) -> dict[str, Any]:
    """Probability of every label for each item, as the route returns it: that of the label as the
    token behind query and item. Raises RequestError."""
    labels = _label_ids(service, body)
    prompts, names = _joined(body)
    asks = await read_asks(service, body, prompts, names)
    found = await service.read(asks, Distribution(top=1, probe=labels))
    weigh = _softmax if body.apply_softmax else _probabilities
    return {
        "object": "scoring",
        "scores": [weigh(done.probe) for done in found],
        "model": body.model or service.model_name,
        "usage": usage(found),
    }


def _label_ids(service: Service, body: ScoreBody) -> tuple[int, ...]:
    labels = body.label_token_ids or []
    if not 1 <= len(labels) <= MAX_PROBES:
        raise RequestError(
            f"label_token_ids has {len(labels)} entries; give 1 to {MAX_PROBES} token ids "
            "(or text_1 and text_2 in place of query and items).",
            "label_token_ids",
        )
    for token in labels:
        if not 0 <= token < service.info.vocab_size:
            raise RequestError(
                f"label_token_ids holds {token}; ids are 0 to {service.info.vocab_size - 1}.",
                "label_token_ids",
            )
    return tuple(labels)


def _joined(body: ScoreBody) -> tuple[Iterator[Any], list[str]]:
    """Query and item, in the order asked for, of each item, and what an error calls them."""
    if body.query is None:
        raise RequestError("query is missing; give a text or token ids.", "query")
    items = prompts_of(body.items, "items")
    if type(items[0]) is not type(body.query):
        raise RequestError("query and items must both be texts or both be token ids.", "items")
    query: Any = body.query
    joined = (item + query if body.item_first else query + item for item in items)
    return joined, places("items", items)


def _probabilities(logprobs: Sequence[float]) -> list[float]:
    return [math.exp(value) for value in logprobs]


def _softmax(logprobs: Sequence[float]) -> list[float]:
    best = max(logprobs)
    if best == -math.inf:
        return [0.0] * len(logprobs)
    weights = [math.exp(value - best) for value in logprobs]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


# -- by similarity --------------------------------------------------------------------------------


async def _similarities(service: Service, body: ScoreBody) -> dict[str, Any]:
    """One of ``text_1`` with each of ``text_2``, or the n-th with the n-th."""
    if body.query is not None or body.items is not None:
        raise RequestError("Give query and items, or text_1 and text_2.", "text_1")
    left, right = _texts(body.text_1, "text_1"), _texts(body.text_2, "text_2")
    if len(left) not in (1, len(right)):
        raise RequestError(
            f"text_1 has {len(left)} texts and text_2 {len(right)}; give one, or as many.", "text_1"
        )
    names = places("text_1", left) + places("text_2", right)
    found = await embed(service, body, left + right, names)
    vectors = await _units(found)
    first = vectors[: len(left)] * (len(right) if len(left) == 1 else 1)
    data = [
        {"index": i, "object": "score", "score": cosine(a, b)}
        for i, (a, b) in enumerate(zip(first, vectors[len(left) :]))
    ]
    return {
        "id": f"score-{uuid.uuid4().hex}",
        "object": "list",
        "created": int(time.time()),
        "model": body.model or service.model_name,
        "data": data,
        "usage": usage(found),
    }


def _texts(value: str | list[str] | None, field: str) -> list[str]:
    texts = [value] if isinstance(value, str) else value or []
    if not texts:
        raise RequestError(f"{field} is missing or empty; give a text or a list of them.", field)
    return texts


async def _rerank(service: Service, body: RerankBody) -> dict[str, Any]:
    """Documents by their similarity to the query, best first; equal ones in their own order."""
    if body.query is None:
        raise RequestError("query is missing; give a text.", "query")
    if body.top_n is not None and body.top_n < 1:
        raise RequestError(f"top_n is {body.top_n}; it must be at least 1.", "top_n")
    texts = [_document(i, document) for i, document in enumerate(body.documents or [])]
    if not texts:
        raise RequestError("documents is missing or empty; give at least one.", "documents")
    if len(texts) >= MAX_INPUTS:
        raise RequestError(
            f"documents has {len(texts)} entries; at most {MAX_INPUTS - 1} beside the query.",
            "documents",
        )
    names = ["query", *places("documents", texts)]
    found = await embed(service, body, [body.query, *texts], names)
    query, *others = await _units(found)
    scores = [cosine(query, other) for other in others]
    order = sorted(range(len(texts)), key=lambda i: -scores[i])[: body.top_n]
    results: list[dict[str, Any]] = [{"index": i, "relevance_score": scores[i]} for i in order]
    if body.return_documents:
        for result in results:
            result["document"] = {"text": texts[result["index"]]}
    return {
        "id": f"rerank-{uuid.uuid4().hex}",
        "model": body.model or service.model_name,
        "results": results,
        "usage": usage(found),
    }


def _document(index: int, document: str | dict[str, Any]) -> str:
    text = document if isinstance(document, str) else document.get("text")
    if not isinstance(text, str):
        raise RequestError(
            f"documents[{index}] must be a text, or an object with text.", "documents"
        )
    return text


async def _units(found: Sequence[Done]) -> list[Floats]:
    vectors = []
    for done in found:
        vectors.append(unit(vector_of(done)))
        await asyncio.sleep(0)
    return vectors


def cosine(a: Floats, b: Floats) -> float:
    """Of two unit vectors: in [-1, 1]."""
    return max(-1.0, min(1.0, math.fsum(map(mul, a, b))))
