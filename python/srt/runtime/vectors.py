"""Vectors: the model's last hidden states, pooled, for ``/encode``, ``/v1/embeddings`` and scores.

Causal models are usually not trained for embeddings, so the quality depends on the model.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from array import array
from collections.abc import Iterable, Sequence
from operator import mul
from typing import Annotated, Any

import msgspec
from sglang.ir.declaration import Bounds
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.ints import Floats
from sglang.srt.core.messages import POOLINGS, Done, Embed
from sglang.srt.core.request_stats import Count
from sglang.srt.requests import common_fields as fields
from sglang.srt.requests.completion.completion_request import CompletionRequest, namespace_of
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import ANYBODY, Caller
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.prompts import places, prompts_of, read_prompt

MAX_INPUTS = 2048  # prompts of one request
MAX_TOKENS = 1 << 23  # of all prompts; a short body may repeat one text (the query) in each
NOTHING = SamplingParams(max_new_tokens=0)


class PoolingFields(msgspec.Struct, kw_only=True):
    """Fields of every request that reads prompts and generates nothing. Null is unset."""

    model: fields.Model | None = None
    pooling: Annotated[
        str | None,
        Bounds(one_of=POOLINGS),
        "The last token's state, or the mean of all; null: `--embedding-pooling`.",
    ] = None
    add_special_tokens: fields.AddSpecialTokens | None = None
    truncate_prompt_tokens: int | None = None
    rid: fields.Rid | None = None
    priority: fields.Priority | None = None
    cache_salt: fields.CacheSalt | None = None
    extra_key: fields.ExtraKey | None = None
    lora_path: fields.LoraPath | None = None


class VectorFields(PoolingFields, kw_only=True):
    """Fields of requests that answer with vectors."""

    dimensions: Annotated[
        int | None,
        Bounds(least=1),
        "Leading numbers of the vector to keep, normalized again; for models trained for this.",
    ] = None
    normalize: Annotated[bool | None, None, "Scale to length 1; true by default."] = None


class EncodeRequest(VectorFields, kw_only=True):
    """One prompt or a list of prompts."""

    text: str | list[str] | None = None
    input_ids: list[Any] | None = None


class EncodedMeta(msgspec.Struct):
    """Facts of one prompt."""

    id: str
    prompt_tokens: Count
    cached_tokens: Count
    forward_passes: Count


class Encoded(msgspec.Struct):
    """The vector of one prompt."""

    embedding: list[float]
    meta_info: EncodedMeta


async def encode(
    runtime: EngineRuntime, body: EncodeRequest, caller: Caller = ANYBODY
) -> Encoded | list[Encoded]:
    """Return the vector of each prompt as a list; a single prompt's vector is returned by itself.

    Raises RequestError, and EngineLost if the engine died.
    """
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("Give one of text and input_ids.", "text")
    field = "text" if body.input_ids is None else "input_ids"
    value = body.text if body.input_ids is None else body.input_ids
    prompts = prompts_of(value, field)
    found, vectors = await embed(runtime, body, prompts, places(field, prompts), caller)
    rid = body.rid or uuid.uuid4().hex
    single = isinstance(value, str) or value is None or not isinstance(value[0], str | list)
    shown = []
    for index, (done, vector) in enumerate(zip(found, vectors)):
        name = rid if single else f"{rid}-{index}"
        meta = EncodedMeta(
            name, done.stats.prompt_tokens, done.stats.cached_tokens, done.stats.forward_passes
        )
        shown.append(Encoded(vector.tolist(), meta))
        await asyncio.sleep(0)
    return shown[0] if single else shown


async def embed(
    runtime: EngineRuntime,
    body: VectorFields,
    prompts: Sequence[Any],
    names: Sequence[str],
    caller: Caller,
) -> tuple[list[Done], list[Floats]]:
    """Return each prompt's terminal event and its float32 vector, cut and normalized as requested.
    ``prompts``: texts or token ids; ``names``: their names in error messages. Raises
    RequestError."""
    _verify_dimensions(runtime, body)
    found = await pooled(runtime, body, prompts, names, caller)
    # A classifier's scores are not normalized unless the request sets ``normalize``.
    wanted = not runtime.info.labels if body.normalize is None else body.normalize
    vectors = []
    for done in found:
        vector = vector_of(done)[: body.dimensions]
        vectors.append(unit(vector) if wanted else vector)
        await asyncio.sleep(0)  # let other requests run between two prompts
    return found, vectors


async def pooled(
    runtime: EngineRuntime,
    body: PoolingFields,
    prompts: Sequence[Any],
    names: Sequence[str],
    caller: Caller,
) -> list[Done]:
    """Return each prompt's terminal event, with the pooled state in ``Done.embedding``. Raises
    RequestError."""
    pooling = body.pooling or runtime.config.server.embedding_pooling
    requests = await read_requests(runtime, body, prompts, names, caller)
    return await runtime.read(requests, Embed(pooling), caller)


async def read_requests(
    runtime: EngineRuntime,
    body: PoolingFields,
    prompts: Iterable[Any],
    names: Sequence[str],
    caller: Caller,
) -> list[CompletionRequest]:
    """Return CompletionRequests for the prompts of a request that generates nothing. Raises
    RequestError."""
    if body.truncate_prompt_tokens is not None:
        raise RequestError(
            "truncate_prompt_tokens is not available: shorten the text yourself, or send ids.",
            "truncate_prompt_tokens",
            "unsupported",
        )
    field = verify_count(names)
    runtime.admit(len(names), caller)
    special = body.add_special_tokens is not False
    adapter = runtime.adapters.of(body.model, body.lora_path)
    salt = namespace_of(body.cache_salt, body.extra_key)
    rid, priority = body.rid or "", body.priority or 0
    requests, total = [], 0
    for name, prompt in zip(names, prompts):
        ids = await read_prompt(runtime, prompt, name, special)
        total += len(ids)
        if total > MAX_TOKENS:
            raise RequestError(
                f"{field} has more than {MAX_TOKENS} tokens in all; send fewer at once.", field
            )
        requests.append(CompletionRequest(ids, NOTHING, None, rid, priority, salt, adapter=adapter))
    return requests


def verify_count(names: Sequence[str]) -> str:
    """Return the body's field that holds the prompts with these names. Raises RequestError if there
    are too many prompts."""
    field = names[-1].partition("[")[0]
    if len(names) > MAX_INPUTS:
        raise RequestError(f"{field} has {len(names)} entries; at most {MAX_INPUTS}.", field)
    return field


def vector_of(done: Done) -> Floats:
    """Return the engine's vector as float32 [hidden size]."""
    vector = array("f")
    vector.frombytes(done.embedding)
    return vector


def unit(vector: Floats) -> Floats:
    """Return the vector scaled to length 1; a zero vector is returned unchanged."""
    length = math.hypot(*vector)
    return array("f", [value / length for value in vector]) if length else vector


def cosine(a: Floats, b: Floats) -> float:
    """Return the cosine of two unit vectors, in [-1, 1]."""
    return max(-1.0, min(1.0, math.fsum(map(mul, a, b))))


def _verify_dimensions(runtime: EngineRuntime, body: VectorFields) -> None:
    size = len(runtime.info.labels) or runtime.info.hidden_size
    if body.dimensions is not None and body.dimensions > size:
        raise RequestError(
            f"dimensions is {body.dimensions}; this model's vectors have {size}"
            " numbers, of which the first may be requested.",
            "dimensions",
        )
