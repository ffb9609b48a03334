"""Scoring: measures by a causal model how well texts fit together.

query, items, label_token_ids    probabilities of the labels as the next token
text_1, text_2                   cosine of two embeddings
query, documents                 documents in the order of their cosine with the query
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import msgspec
from sglang.ir.declaration import Bounds
from sglang.srt.core.ints import Floats
from sglang.srt.core.messages import Distribution, Done
from sglang.srt.requests.common_fields import MAX_PROBES
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import ANYBODY, Caller
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.prompts import places, prompts_of
from sglang.srt.runtime.vectors import (
    MAX_INPUTS,
    PoolingFields,
    cosine,
    pooled,
    read_requests,
    unit,
    vector_of,
)


class ScoreRequest(PoolingFields, kw_only=True):
    """``query``, ``items`` and ``label_token_ids``, or ``text_1`` and ``text_2``."""

    query: str | list[int] | None = None
    items: Any = None
    label_token_ids: list[int] | None = None
    apply_softmax: bool | None = None
    item_first: bool | None = None
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None

    @property
    def paired(self) -> bool:
        """Whether the request compares ``text_1`` with ``text_2``."""
        return self.text_1 is not None or self.text_2 is not None


class RerankRequest(PoolingFields, kw_only=True):
    """``documents`` are texts, or objects with a ``text``."""

    query: str | None = None
    documents: list[str | dict[str, Any]] | None = None
    top_n: Annotated[int | None, Bounds(least=1), "Most documents to return, best first."] = None
    return_documents: Annotated[bool | None, None, "Return the documents, too."] = None


class LabelScores(msgspec.Struct):
    """The probability of every label for each item, and each prompt's terminal event."""

    scores: list[list[float]]
    found: list[Done]

    @property
    def prompt_tokens(self) -> int:
        return sum(done.stats.prompt_tokens for done in self.found)


class Similarities(msgspec.Struct):
    """Cosines, in [-1, 1], and each prompt's terminal event."""

    scores: list[float]
    found: list[Done]


class Ranking(msgspec.Struct):
    """Ranking of documents. ``order``: indices of documents, best first. ``scores``, ``texts``: the
    cosine and text of each document, by index."""

    order: list[int]
    scores: list[float]
    texts: list[str]
    found: list[Done]


# -- by labels ------------------------------------------------------------------------------------


async def label_scores(
    runtime: EngineRuntime, body: ScoreRequest, caller: Caller = ANYBODY
) -> LabelScores:
    """Return for each item the probability of every label as the token after query and item. Raises
    RequestError."""
    labels = _label_ids(runtime, body)
    prompts, names = _joined(body)
    requests = await read_requests(runtime, body, prompts, names, caller)
    found = await runtime.read(requests, Distribution(top=1, probe=labels), caller)
    weigh = _softmax if body.apply_softmax else _probabilities
    return LabelScores([weigh(done.probe) for done in found], found)


def _label_ids(runtime: EngineRuntime, body: ScoreRequest) -> tuple[int, ...]:
    labels = body.label_token_ids or []
    if not 1 <= len(labels) <= MAX_PROBES:
        raise RequestError(
            f"label_token_ids has {len(labels)} entries; give 1 to {MAX_PROBES} token ids "
            "(or text_1 and text_2 in place of query and items).",
            "label_token_ids",
        )
    for token in labels:
        if not 0 <= token < runtime.info.vocab_size:
            raise RequestError(
                f"label_token_ids holds {token}; ids are 0 to {runtime.info.vocab_size - 1}.",
                "label_token_ids",
            )
    return tuple(labels)


def _joined(body: ScoreRequest) -> tuple[Iterator[Any], list[str]]:
    """Return for each item its prompt (query and item, in the requested order), and its name in
    error messages. Raises RequestError."""
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


async def similarities(
    runtime: EngineRuntime, body: ScoreRequest, caller: Caller = ANYBODY
) -> Similarities:
    """Return the cosines of each pair of ``text_1`` and ``text_2``. A single ``text_1`` is compared
    with every ``text_2``. Raises RequestError."""
    if body.query is not None or body.items is not None:
        raise RequestError("Give query and items, or text_1 and text_2.", "text_1")
    left, right = _texts(body.text_1, "text_1"), _texts(body.text_2, "text_2")
    if len(left) not in (1, len(right)):
        raise RequestError(
            f"text_1 has {len(left)} texts and text_2 {len(right)}; give one, or as many.", "text_1"
        )
    names = places("text_1", left) + places("text_2", right)
    found = await pooled(runtime, body, left + right, names, caller)
    vectors = await _units(found)
    first = vectors[: len(left)] * (len(right) if len(left) == 1 else 1)
    return Similarities([cosine(a, b) for a, b in zip(first, vectors[len(left) :])], found)


def _texts(value: str | list[str] | None, field: str) -> list[str]:
    texts = [value] if isinstance(value, str) else value or []
    if not texts:
        raise RequestError(f"{field} is missing or empty; give a text or a list of them.", field)
    return texts


async def rerank(runtime: EngineRuntime, body: RerankRequest, caller: Caller = ANYBODY) -> Ranking:
    """Rank documents by their similarity to the query; ties keep the order of the request. Raises
    RequestError."""
    if body.query is None:
        raise RequestError("query is missing; give a text.", "query")
    texts = [_document(i, document) for i, document in enumerate(body.documents or [])]
    if not texts:
        raise RequestError("documents is missing or empty; give at least one.", "documents")
    if len(texts) >= MAX_INPUTS:
        raise RequestError(
            f"documents has {len(texts)} entries; at most {MAX_INPUTS - 1} beside the query.",
            "documents",
        )
    names = ["query", *places("documents", texts)]
    found = await pooled(runtime, body, [body.query, *texts], names, caller)
    query, *others = await _units(found)
    scores = [cosine(query, other) for other in others]
    order = sorted(range(len(texts)), key=lambda i: -scores[i])[: body.top_n]
    return Ranking(order, scores, texts, found)


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
