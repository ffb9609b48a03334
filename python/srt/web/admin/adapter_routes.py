"""POST /load_lora_adapter and /unload_lora_adapter."""

from __future__ import annotations

from typing import Any

import msgspec
from sglang.srt.runtime.loaded_adapters import LoadedAdapters
from sglang.srt.web.exchange.error_replies import json_response
from sglang.srt.web.exchange.event_stream import unless_gone
from sglang.srt.web.exchange.json_body import read_body
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response


class LoadBody(msgspec.Struct, kw_only=True):
    """``lora_path`` is a path in ``--lora-dir`` (relative paths start there), or one that was given
    at the start. ``pinned``: the adapter stays on the GPU."""

    lora_name: str
    lora_path: str
    pinned: bool | None = None


class UnloadBody(msgspec.Struct, kw_only=True):
    """``lora_int_id``, a field of other servers, is ignored."""

    lora_name: str


async def load(state: ServerState, request: Request) -> Response:
    """Load an adapter. Requests may name the adapter once this route has answered."""
    body = await read_body(request, LoadBody, state.body_limit)
    adapters = state.runtime.adapters
    work = adapters.load(body.lora_name, body.lora_path, bool(body.pinned))
    await unless_gone(request, work)
    return json_response(_reply(adapters, f"The adapter {body.lora_name!r} is loaded."))


async def unload(state: ServerState, request: Request) -> Response:
    """Unload an adapter. New requests cannot name it from now on. The answer comes when the
    requests that use the adapter have ended and its memory is free."""
    body = await read_body(request, UnloadBody, state.body_limit)
    await unless_gone(request, state.runtime.unload_adapter(body.lora_name))
    return json_response(_reply(state.runtime.adapters, f"The adapter {body.lora_name!r} is gone."))


def _reply(adapters: LoadedAdapters, message: str) -> dict[str, Any]:
    paths = {name: info.path for name, info in adapters.loaded.items()}
    return {"success": True, "message": message, "loaded_adapters": paths}
