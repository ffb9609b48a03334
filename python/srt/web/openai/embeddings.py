"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
import sys
from typing import Annotated, Any

import msgspec
from sglang.ir.declaration import Bounds
from sglang.srt.core.ints import Floats
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.prompts import places, prompts_of
from sglang.srt.runtime.vectors import MAX_INPUTS, VectorFields, embed
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import json_response
from sglang.srt.web.exchange.event_stream import unless_gone
from sglang.srt.web.exchange.json_body import read_body
from sglang.srt.web.openai.reply_fields import usage_of_prompts
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response

ENCODINGS = ("float", "base64")


class EmbeddingBody(VectorFields, kw_only=True):
    """Other fields (``user``, ``input_type``) are ignored."""

    input: Annotated[
        Any,
        Bounds(words="a text, token ids, a list of texts or a list of lists of ids"),
        f"At most {MAX_INPUTS}.",
    ] = None
    encoding_format: Annotated[
        str | None, Bounds(one_of=ENCODINGS), "`base64`: of little-endian float32."
    ] = None


async def embeddings(state: ServerState, request: Request) -> Response:
    body = await read_body(request, EmbeddingBody, state.body_limit)
    return json_response(await unless_gone(request, _embeddings(state.runtime, body)))


async def _embeddings(runtime: EngineRuntime, body: EmbeddingBody) -> dict[str, Any]:
    prompts = prompts_of(body.input, "input")
    found, vectors = await embed(runtime, body, prompts, places("input", prompts), CALLER.get())
    data = []
    for index, vector in enumerate(vectors):
        shown = _base64(vector) if body.encoding_format == "base64" else vector.tolist()
        item = {"object": "embedding", "index": index, "embedding": shown}
        data.append(msgspec.Raw(msgspec.json.encode(item)))
        await asyncio.sleep(0)  # let other requests run between two vectors
    name = body.model or runtime.model_name
    return {"object": "list", "data": data, "model": name, "usage": usage_of_prompts(found)}


def _base64(vector: Floats) -> str:
    """Return base64 of a vector as little-endian float32, on any machine."""
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return base64.b64encode(vector.tobytes()).decode()
