"""POST /classify: the labels of texts, by a model with a classification head."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Sequence
from typing import Any

from sglang.srt.core.messages import Embed
from sglang.srt.http.exchange.error_replies import json_response
from sglang.srt.http.exchange.event_stream import unless_gone
from sglang.srt.http.exchange.json_body import read_body
from sglang.srt.http.openai.embeddings import PoolingFields, read_asks, usage, vector_of
from sglang.srt.http.prompts import places, prompts_of
from sglang.srt.http.service import Service
from sglang.srt.program.request_error import RequestError
from starlette.requests import Request
from starlette.responses import Response


class ClassifyBody(PoolingFields, kw_only=True):
    """``input``: a text, a list of texts or of token ids. ``pooling`` can only be "last"."""

    input: Any = None


async def classify(service: Service, request: Request) -> Response:
    body = await read_body(request, ClassifyBody, service.body_limit)
    return json_response(await unless_gone(request, _classify(service, body)))


async def _classify(service: Service, body: ClassifyBody) -> dict[str, Any]:
    labels = service.info.labels
    if not labels:
        raise RequestError(
            f"{service.info.model_path} ({service.info.architecture}) has no labels; serve a "
            "...ForSequenceClassification model, or use /v1/score with label_token_ids.",
            "model",
            "unsupported",
        )
    if body.pooling not in (None, "last"):
        raise RequestError(
            f"pooling is {body.pooling!r}; the labels are read off the last token.", "pooling"
        )
    prompts = prompts_of(body.input, "input")
    asks = await read_asks(service, body, prompts, places("input", prompts))
    found = await service.read(asks, Embed("last"))
    data = []
    for index, done in enumerate(found):
        scores = vector_of(done).tolist()
        probs = probabilities(scores)
        best = max(range(len(scores)), key=scores.__getitem__)
        data.append(
            {"index": index, "label": labels[best], "probs": probs, "scores": scores,
             "num_classes": len(labels)}
        )  # fmt: skip
    return {
        "id": f"classify-{uuid.uuid4().hex}", "object": "list", "created": int(time.time()),
        "model": body.model or service.model_name, "data": data, "usage": usage(found),
    }  # fmt: skip


def probabilities(scores: Sequence[float]) -> list[float]:
    """The softmax; of a single score, which is a reward, the logistic function."""
    if len(scores) == 1:
        tail = math.exp(-abs(scores[0]))
        return [(1.0 if scores[0] >= 0 else tail) / (1 + tail)]
    most = max(scores)
    weights = [math.exp(score - most) for score in scores]
    whole = sum(weights)
    return [weight / whole for weight in weights]
