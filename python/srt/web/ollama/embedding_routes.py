"""POST /api/embed and /api/embeddings: vectors in Ollama's form."""

from __future__ import annotations

import time
from typing import Any

from sglang.srt.requests.completion.encoder import bytes_of
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.prompts import places
from sglang.srt.runtime.vectors import VectorFields, embed, verify_count
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import json_response
from sglang.srt.web.exchange.event_stream import unless_gone
from sglang.srt.web.exchange.json_body import read_body
from sglang.srt.web.ollama.ollama_bodies import OllamaEmbedBody, OllamaEmbeddingsBody
from sglang.srt.web.ollama.served_models import model_of
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response

FRAME = 8  # most tokens that a tokenizer adds around a text; the text has at most one per byte


async def embed_texts(state: ServerState, request: Request) -> Response:
    """Return a vector of length 1 for each text."""
    body = await read_body(request, OllamaEmbedBody, state.body_limit)
    return json_response(await unless_gone(request, _embedded(state.runtime, body)))


async def embeddings(state: ServerState, request: Request) -> Response:
    """Return the vector of one text; an empty list for an empty text."""
    body = await read_body(request, OllamaEmbeddingsBody, state.body_limit)
    wanted = OllamaEmbedBody(model=body.model, name=body.name, input=body.prompt)
    found = await unless_gone(request, _embedded(state.runtime, wanted))
    return json_response({"embedding": found["embeddings"][0] if found["embeddings"] else []})


async def _embedded(runtime: EngineRuntime, body: OllamaEmbedBody) -> dict[str, Any]:
    model, begun = model_of(runtime, body), time.monotonic_ns()
    texts = [body.input] if isinstance(body.input, str) else body.input or []
    if texts in ([], [""]):
        return {"model": body.model or body.name, "embeddings": []}
    names = places("input", texts)
    verify_count(names)
    prompts: list[str | list[int]] = list(texts)
    if body.truncate is not False:
        prompts = [await _shortened(runtime, text) for text in texts]
    fields = VectorFields(model=model, dimensions=body.dimensions)
    found, vectors = await embed(runtime, fields, prompts, names, CALLER.get())
    return {
        "model": body.model or body.name,
        "embeddings": [vector.tolist() for vector in vectors],
        "total_duration": time.monotonic_ns() - begun,
        "load_duration": 0,
        "prompt_eval_count": sum(done.stats.prompt_tokens for done in found),
    }


async def _shortened(runtime: EngineRuntime, text: str) -> str | list[int]:
    """Return the text, or its first token ids if it is longer than the context."""
    room = min(runtime.info.context_length, runtime.info.capacity)
    if bytes_of(text) + FRAME <= room:
        return text
    ids = await runtime.completion.encoder.encode(text)
    return text if len(ids) <= room else list(ids[:room])
