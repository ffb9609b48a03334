"""POST /v1/score and /v1/rerank: measure by a causal model how well texts fit together."""

from __future__ import annotations

import time
import uuid
from typing import Any

from sglang.srt.runtime.scoring import RerankRequest, ScoreRequest, label_scores, similarities
from sglang.srt.runtime.scoring import rerank as ranked
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import json_response
from sglang.srt.web.exchange.event_stream import unless_gone
from sglang.srt.web.exchange.json_body import read_body
from sglang.srt.web.openai.reply_fields import usage_of_prompts
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response


async def score(state: ServerState, request: Request) -> Response:
    body = await read_body(request, ScoreRequest, state.body_limit)
    runtime, caller = state.runtime, CALLER.get()
    name = body.model or runtime.model_name
    if body.paired:
        pairs = await unless_gone(request, similarities(runtime, body, caller))
        return json_response(
            {
                "id": f"score-{uuid.uuid4().hex}",
                "object": "list",
                "created": int(time.time()),
                "model": name,
                "data": [
                    {"index": i, "object": "score", "score": score}
                    for i, score in enumerate(pairs.scores)
                ],
                "usage": usage_of_prompts(pairs.found),
            }
        )
    labels = await unless_gone(request, label_scores(runtime, body, caller))
    usage = usage_of_prompts(labels.found)
    return json_response(
        {"object": "scoring", "scores": labels.scores, "model": name, "usage": usage}
    )


async def rerank(state: ServerState, request: Request) -> Response:
    body = await read_body(request, RerankRequest, state.body_limit)
    found = await unless_gone(request, ranked(state.runtime, body, CALLER.get()))
    results: list[dict[str, Any]] = [
        {"index": i, "relevance_score": found.scores[i]} for i in found.order
    ]
    if body.return_documents:
        for result in results:
            result["document"] = {"text": found.texts[result["index"]]}
    return json_response(
        {
            "id": f"rerank-{uuid.uuid4().hex}",
            "model": body.model or state.runtime.model_name,
            "results": results,
            "usage": usage_of_prompts(found.found),
        }
    )
