"""GET /explain/{id}: explains why a prompt was, or was not, in the cache."""

from __future__ import annotations

import msgspec
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.explanations import CacheExplanation, explain
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import json_response
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response


class Explained(msgspec.Struct):
    """Explanations of the first 16 prompts of one HTTP request, in order."""

    id: str
    prompts: list[CacheExplanation]


async def explain_request(state: ServerState, request: Request) -> Response:
    """Explain a request that has ended, by its X-Request-Id, its ``rid`` or the id of its
    answer."""
    name = request.path_params["id"]
    entry = state.explanations.find(name, CALLER.get())
    if entry is None or not entry.prompts:
        raise RequestError(
            f"There is no explanation of {name!r:.200}: give the X-Request-Id, the rid or the "
            "answer's id of one of the last requests that have ended.",
            "id",
            "not_found",
        )
    shared = not state.config.memory.disable_radix_cache
    kept = [entry.prompts[place] for place in sorted(entry.prompts)]
    found = [explain(each, state.runtime.tokenizer, CALLER.get(), shared) for each in kept]
    return json_response(Explained(name, found))
