"""Classification: the labels of texts, by a model with a classification head."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
from sglang.srt.core.messages import Done, Embed
from sglang.srt.core.request_stats import Count
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import ANYBODY, Caller
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.prompts import places, prompts_of
from sglang.srt.runtime.vectors import PoolingFields, read_requests, vector_of


class ClassifyRequest(PoolingFields, kw_only=True):
    """``input``: a text, a list of texts or of token ids. ``pooling`` can only be "last"."""

    input: Any = None


class Label(msgspec.Struct):
    """Classification of one prompt. ``label``: the most likely label, ``index``: that of the
    prompt. ``probs`` and ``scores`` have one entry for each label, in the model's order."""

    index: Count
    label: str
    probs: list[float]
    scores: list[float]
    num_classes: Count


async def classify(
    runtime: EngineRuntime, body: ClassifyRequest, caller: Caller = ANYBODY
) -> tuple[list[Label], list[Done]]:
    """Return the label of each prompt, and its terminal event. Raises RequestError."""
    labels = runtime.info.labels
    if not labels:
        raise RequestError(
            f"{runtime.info.model_path} ({runtime.info.architecture}) has no labels; serve a "
            "...ForSequenceClassification model, or use /v1/score with label_token_ids.",
            "model",
            "unsupported",
        )
    if body.pooling not in (None, "last"):
        raise RequestError(
            f"pooling is {body.pooling!r}; the labels are read off the last token.", "pooling"
        )
    prompts = prompts_of(body.input, "input")
    requests = await read_requests(runtime, body, prompts, places("input", prompts), caller)
    found = await runtime.read(requests, Embed("last"), caller)
    shown = []
    for index, done in enumerate(found):
        scores = vector_of(done).tolist()
        best = max(range(len(scores)), key=scores.__getitem__)
        shown.append(Label(index, labels[best], probabilities(scores), scores, len(labels)))
    return shown, found


def probabilities(scores: Sequence[float]) -> list[float]:
    """Return the softmax of scores. A single score is a reward: return its logistic function."""
    if len(scores) == 1:
        tail = math.exp(-abs(scores[0]))
        return [(1.0 if scores[0] >= 0 else tail) / (1 + tail)]
    most = max(scores)
    weights = [math.exp(score - most) for score in scores]
    whole = sum(weights)
    return [weight / whole for weight in weights]
