"""/v1/responses: answers made of items, which may be stored, continued, and run in background."""

from __future__ import annotations

import sys
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

import msgspec
from sglang.ir.declaration import Bounds
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.conversations.chat_request import ChatCall, read_chat
from sglang.srt.runtime.conversations.toolbox_turns import (
    ToolboxTurns,
    named_entries,
    toolbox_turns,
)
from sglang.srt.runtime.offload import entries, offload
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import json_response
from sglang.srt.web.exchange.event_stream import respond, unless_gone
from sglang.srt.web.exchange.json_body import read_body
from sglang.srt.web.exchange.query import read_query
from sglang.srt.web.openai.responses.answer import Answer
from sglang.srt.web.openai.responses.event_log import (
    EVENTS,
    FRAMES,
    begin,
    follow,
    with_errors,
    written,
)
from sglang.srt.web.openai.responses.items import Item, messages_of, read_items
from sglang.srt.web.openai.responses.responses_body import (
    ResponsesBody,
    chat_of,
    check,
    in_own_words,
)
from sglang.srt.web.openai.responses.stored_context import Past
from sglang.srt.web.openai.responses.toolbox_events import written_turns
from sglang.srt.web.response_store import StoredResponse
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response

_NUMBERS = Bounds(0, (1 << 53) - 1)


class ResponseQuery(msgspec.Struct):
    stream: Annotated[str, Bounds(one_of=("true", "false")), "Return the events."] = "false"
    starting_after: Annotated[int, _NUMBERS, "Only events after this number."] | None = None


class ItemsQuery(msgspec.Struct):
    order: Annotated[str, Bounds(one_of=("asc", "desc")), "Oldest or latest first."] = "desc"
    limit: Annotated[int, Bounds(1, 100), "Most items of one answer."] = 20
    after: Annotated[str, None, "Items after the one with this id."] | None = None


async def create(state: ServerState, request: Request) -> Response:
    """Answer an input: as one object, as a stream of events, or in the background."""
    body = await _body(state, request)
    name = uuid.uuid4().hex
    items, call, turns = await _read(state, body, name)
    answer = Answer(state, body, call, name)
    call = replace(call, request=replace(call.request, rid=body.rid or answer.id))
    kept = msgspec.json.encode(items)
    record = StoredResponse(answer.id, CALLER.get().tenant, body.previous_response_id or "", kept)
    whole = not body.background and not body.stream
    interval = sys.maxsize if whole else state.config.server.stream_interval
    if turns is None:
        events = written(state, call, answer, interval)
    else:
        events = written_turns(state, call, answer, interval, turns)
    if body.background:
        record.events = [] if body.stream else None
        begin(state, call, answer, record, events)
        if body.stream:
            return await respond(request, follow(record, -1), FRAMES)
        return json_response(answer.value())

    def save() -> None:
        if body.kept:
            record.value = msgspec.json.encode(answer.value())
            state.responses.put(record)

    if body.stream:
        return await respond(request, with_errors(events, answer, save), EVENTS)
    await unless_gone(request, _all(events))
    save()
    return json_response(answer.value())


async def _body(state: ServerState, request: Request) -> ResponsesBody:
    """Read the body, with one entry for each tool of the server. Raises RequestError."""
    body = await read_body(request, ResponsesBody, state.body_limit)
    if body.tools:
        body = msgspec.structs.replace(body, tools=named_entries(state.toolbox, body.tools))
    return body


async def _read(
    state: ServerState, body: ResponsesBody, name: str, fits: bool = True
) -> tuple[list[Item], ChatCall, ToolboxTurns | None]:
    """Return the items of the input, the chat of the continued response and these items, and the
    chat's turns if it has tools of the server. ``fits``: refuse a prompt that is too long for the
    model. Raises RequestError."""
    check(body)
    past = Past(state.responses)
    before = past.conversation(body.previous_response_id)
    count = entries([before, body.input])
    items = await offload(count, read_items, body.input, name, before, past.item)
    chat = chat_of(body, await offload(count, messages_of, body.instructions, [*before, *items]))
    turns = toolbox_turns(state.toolbox, chat)
    chat = chat if turns is None else turns.body
    with in_own_words():
        caller, owner = CALLER.get() if fits else None, CALLER.get().tenant
        return items, await read_chat(state.runtime, chat, fits, caller, owner), turns


async def _all(events: AsyncGenerator[Any, None]) -> None:
    async with aclosing(events):
        async for _ in events:
            pass


async def count(state: ServerState, request: Request) -> Response:
    """Count the tokens of an input."""
    body = await _body(state, request)
    _, call, _ = await _read(state, body, "", fits=False)
    return json_response(
        {"object": "response.input_tokens", "input_tokens": len(call.request.prompt)}
    )


async def retrieve(state: ServerState, request: Request) -> Response:
    """Return a stored response; with ``stream=true`` (query) its events after
    ``starting_after``."""
    record = _stored(state, request)
    query = read_query(request, ResponseQuery)
    if query.stream == "false":
        return _object(record)
    if record.events is None:
        raise RequestError(
            "Events are stored only for responses created with background: true and stream: true, "
            "while the store has room for them; retrieve it without stream.",
            "stream",
        )
    after = query.starting_after
    return await respond(request, follow(record, -1 if after is None else after), FRAMES)


async def cancel(state: ServerState, request: Request) -> Response:
    """Cancel a response in the background. A response that has ended is not changed."""
    record = _stored(state, request)
    if record.live is not None:
        await record.live.cancel()
    elif not msgspec.json.decode(record.value)["background"]:
        raise RequestError("Only a response created with background: true can be cancelled.")
    return _object(record)


async def delete(state: ServerState, request: Request) -> Response:
    """Delete a response. A response in the background is cancelled first."""
    record = _stored(state, request)
    if record.live is not None:
        await record.live.cancel()
    state.responses.drop(record)
    return json_response({"id": record.id, "object": "response", "deleted": True})


async def input_items(state: ServerState, request: Request) -> Response:
    """Return a response's own input items, by ``order``, ``limit`` and ``after`` (query)."""
    record = _stored(state, request)
    query = read_query(request, ItemsQuery)
    items: list[Item] = msgspec.json.decode(record.items)
    items = items if query.order == "asc" else items[::-1]
    if query.after is not None:
        places = [i for i, item in enumerate(items) if item["id"] == query.after]
        if not places:
            raise RequestError(f"after is {query.after!r:.80}; no item has this id.", "after")
        items = items[places[0] + 1 :]
    page = items[: query.limit]
    return json_response(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(items) > query.limit,
        }
    )


def _stored(state: ServerState, request: Request) -> StoredResponse:
    """Return the stored response of the path's id. Raises RequestError if the caller's tenant has
    none."""
    id = request.path_params["id"]
    record = state.responses.find(CALLER.get().tenant, id)
    if record is None:
        raise RequestError(
            f"Response with id {id!r:.80} not found: it was not stored, has been deleted, or has "
            "been dropped for newer ones.",
            code="not_found",
        )
    return record


def _object(record: StoredResponse) -> Response:
    if record.live is not None:
        return json_response(record.live.answer.value())
    return Response(record.value, media_type="application/json")
