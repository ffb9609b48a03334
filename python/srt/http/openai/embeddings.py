"""POST /v1/embeddings and /encode: the model's last hidden states, pooled into vectors.

A causal model was not trained to make them: how good they are is the model's affair.
"""

from __future__ import annotations

import asyncio
import base64
import math
import sys
import uuid
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from sglang.ir.sampling import SamplingParams
from sglang.srt.core.ints import Floats
from sglang.srt.core.messages import POOLINGS, Done, Embed
from sglang.srt.http.exchange.error_replies import json_response
from sglang.srt.http.exchange.event_stream import unless_gone
from sglang.srt.http.exchange.json_body import read_body
from sglang.srt.http.openai.shared_fields import usage_of
from sglang.srt.http.prompts import places, prompts_of, read_prompt
from sglang.srt.http.service import Service
from sglang.srt.program.ask import Ask, namespace_of
from sglang.srt.program.request_error import RequestError
from starlette.requests import Request
from starlette.responses import Response

MAX_INPUTS = 2048  # of one HTTP request
MAX_TOKENS = 1 << 23  # of all its inputs: what they share need not be in the body more than once
ENCODINGS = ("float", "base64")
_NOTHING = SamplingParams(max_new_tokens=0)


class PoolingFields(msgspec.Struct, kw_only=True):
    """What every route that makes vectors takes.

    ``pooling``: "last" or "mean"; unset: ``--embedding-pooling``.
    """

    model: str | None = None
    pooling: str | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    rid: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    lora_path: str | None = None


class VectorFields(PoolingFields, kw_only=True):
    """``dimensions``: only so many of the vector's first numbers. ``normalize``: to length 1, which
    is the default."""

    dimensions: int | None = None
    normalize: bool | None = None


class EmbeddingBody(VectorFields, kw_only=True):
    """Other fields (``user``, ``input_type``) are ignored."""

    input: Any = None
    encoding_format: str | None = None


class EncodeBody(VectorFields, kw_only=True):
    """One prompt or a list of them."""

    text: str | list[str] | None = None
    input_ids: list[Any] | None = None


async def embeddings(service: Service, request: Request) -> Response:
    body = await read_body(request, EmbeddingBody, service.body_limit)
    return json_response(await unless_gone(request, _embeddings(service, body)))


async def _embeddings(service: Service, body: EmbeddingBody) -> dict[str, Any]:
    form = body.encoding_format or "float"
    if form not in ENCODINGS:
        raise RequestError(
            f"encoding_format is {form!r}; use one of {', '.join(ENCODINGS)}.", "encoding_format"
        )
    _verify_dimensions(service, body)
    prompts = prompts_of(body.input, "input")
    found = await embed(service, body, prompts, places("input", prompts))
    data = []
    for index, done in enumerate(found):
        vector = _shaped(service, body, done)
        shown = _base64(vector) if form == "base64" else vector.tolist()
        item = {"object": "embedding", "index": index, "embedding": shown}
        data.append(msgspec.Raw(msgspec.json.encode(item)))
        await asyncio.sleep(0)  # a long list holds nobody up for longer than one of it
    name = body.model or service.model_name
    return {"object": "list", "data": data, "model": name, "usage": usage(found)}


async def encode(service: Service, request: Request) -> Response:
    body = await read_body(request, EncodeBody, service.body_limit)
    return json_response(await unless_gone(request, answer(service, body)))


async def answer(service: Service, body: EncodeBody) -> dict[str, Any] | list[dict[str, Any]]:
    """What /encode answers, as plain data: the offline engine answers the same.

    Raises RequestError, and EngineLost where the engine died.
    """
    if (body.text is None) == (body.input_ids is None):
        raise RequestError("Give one of text and input_ids.", "text")
    field = "text" if body.input_ids is None else "input_ids"
    value = getattr(body, field)
    prompts = prompts_of(value, field)
    _verify_dimensions(service, body)
    rid = body.rid or uuid.uuid4().hex
    found = await embed(service, body, prompts, places(field, prompts))
    single = isinstance(value, str) or not isinstance(value[0], str | list)
    shown = []
    for index, done in enumerate(found):
        meta = {
            "id": rid if single else f"{rid}-{index}",
            "prompt_tokens": done.stats.prompt_tokens,
            "cached_tokens": done.stats.cached_tokens,
            "forward_passes": done.stats.forward_passes,
        }
        shown.append({"embedding": _shaped(service, body, done).tolist(), "meta_info": meta})
        await asyncio.sleep(0)
    return shown[0] if single else shown


async def embed(
    service: Service, body: PoolingFields, prompts: Sequence[Any], names: Sequence[str]
) -> list[Done]:
    """The pooled states of each prompt, text or ids, in ``Done.embedding``. Raises RequestError,
    naming the prompt."""
    pooling = body.pooling or service.config.server.embedding_pooling
    if pooling not in POOLINGS:
        raise RequestError(f"pooling is {pooling!r}; use one of {', '.join(POOLINGS)}.", "pooling")
    asks = await read_asks(service, body, prompts, names)
    return await service.read(asks, Embed(pooling))


async def read_asks(
    service: Service, body: PoolingFields, prompts: Iterable[Any], names: Sequence[str]
) -> list[Ask]:
    """The prompts of one request that draws nothing. Raises RequestError."""
    if body.truncate_prompt_tokens is not None:
        raise RequestError(
            "truncate_prompt_tokens is not available: shorten the text yourself, or send ids.",
            "truncate_prompt_tokens",
            "unsupported",
        )
    field = names[-1].partition("[")[0]
    if len(names) > MAX_INPUTS:
        raise RequestError(f"{field} has {len(names)} entries; at most {MAX_INPUTS}.", field)
    service.admit(len(names))
    special = body.add_special_tokens is not False
    adapter = service.adapters.of(body.model, body.lora_path)
    salt = namespace_of(body.cache_salt, body.extra_key)
    rid, priority = body.rid or "", body.priority or 0
    asks, total = [], 0
    for name, prompt in zip(names, prompts):
        ids = await read_prompt(service, prompt, name, special)
        total += len(ids)
        if total > MAX_TOKENS:
            raise RequestError(
                f"{field} has more than {MAX_TOKENS} tokens in all; send fewer at once.", field
            )
        asks.append(Ask(ids, _NOTHING, None, rid, priority, salt, adapter=adapter))
    return asks


def unit(vector: Floats) -> Floats:
    """The vector's direction; a zero vector stays what it is."""
    length = math.hypot(*vector)
    return array("f", [value / length for value in vector]) if length else vector


def vector_of(done: Done) -> Floats:
    """float32 [hidden size], as the engine found it."""
    vector = array("f")
    vector.frombytes(done.embedding)
    return vector


def usage(found: Sequence[Done]) -> dict[str, Any]:
    """Token counts of a request that draws nothing."""
    prompt = sum(done.stats.prompt_tokens for done in found)
    return usage_of(prompt, 0, sum(done.stats.cached_tokens for done in found))


def _verify_dimensions(service: Service, body: VectorFields) -> None:
    size = len(service.info.labels) or service.info.hidden_size
    if body.dimensions is not None and not 1 <= body.dimensions <= size:
        raise RequestError(
            f"dimensions is {body.dimensions}; this model's vectors have {size}"
            " numbers, of which the first may be asked for.",
            "dimensions",
        )


def _shaped(service: Service, body: VectorFields, done: Done) -> Floats:
    """A classifier's scores are left as they are, unless the body says otherwise."""
    vector = vector_of(done)[: body.dimensions]
    wanted = not service.info.labels if body.normalize is None else body.normalize
    return unit(vector) if wanted else vector


def _base64(vector: Floats) -> str:
    """float32, little-endian, whatever the machine."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()
