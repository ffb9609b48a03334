"""/v1/inferlets and /v1/runs: programs that clients upload, their runs and events."""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import replace
from typing import Any

import msgspec
from sglang.srt.inferlet.program_limits import Rights
from sglang.srt.inferlet.sandbox.program_sandbox import ProgramSandbox, RunOrder
from sglang.srt.inferlet.sandbox.uploads import Language
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import Caller, InferletGrant
from sglang.srt.runtime.generate_request import GenerateRequest
from sglang.srt.runtime.generation import generate
from sglang.srt.runtime.offload import offload
from sglang.srt.runtime.request_fields import convert
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import ServerError, json_response
from sglang.srt.web.exchange.event_stream import EventForm, respond, typed_event
from sglang.srt.web.exchange.json_body import read_body, read_optional_body
from sglang.srt.web.exchange.query import read_query
from sglang.srt.web.inferlet_api.inferlet_bodies import MessageBody, RunBody, RunQuery, UploadBody
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response

EVENTS = EventForm(typed_event, b"")


async def upload(state: ServerState, request: Request) -> Response:
    """Store a program. A WebAssembly program is compiled first, or refused with the reason."""
    body = await read_body(request, UploadBody, state.body_limit)
    given = [one for one in (body.source, body.javascript, body.wasm) if one is not None]
    if len(given) != 1:
        raise RequestError(
            "Give source or javascript, texts, or wasm, base64: one of them.", "source"
        )
    language: Language | None = None
    if body.wasm is not None:
        data = await offload(len(body.wasm), _binary, body.wasm, "wasm")
    else:
        data, language = given[0].encode(), "python" if body.javascript is None else "javascript"
    sandbox, caller = _sandbox(state, "unsupported")
    digest = hashlib.sha256(data).hexdigest()
    if body.sha256 is not None and body.sha256.lower() != digest:
        raise RequestError(
            f"The program has the SHA-256 {digest}, not the one that was sent; send it again.",
            "sha256",
        )
    program = await sandbox.uploads.put(caller.tenant, data, body.name, language)
    return json_response(program.shown(caller.tenant))


async def programs(state: ServerState, request: Request) -> Response:
    """Return the programs of this key, the oldest first."""
    if state.inferlets is None:
        return json_response({"object": "list", "data": []})
    sandbox, caller = _sandbox(state)
    found = [program.shown(caller.tenant) for program in sandbox.uploads.all(caller.tenant)]
    return json_response({"object": "list", "data": found})


async def remove(state: ServerState, request: Request) -> Response:
    """Delete a program. Its runs continue."""
    sandbox, caller = _sandbox(state)
    name = request.path_params["id"]
    sandbox.uploads.remove(caller.tenant, name)
    return json_response({"id": name, "object": "inferlet", "deleted": True})


async def launch(state: ServerState, request: Request) -> Response:
    """Run a program. The answer is the run at its start or, as a stream, the run's events to its
    end. The run continues if the client disconnects."""
    body = await read_optional_body(request, RunBody, state.body_limit)
    sandbox, caller = _sandbox(state)
    program = sandbox.uploads.get(caller.tenant, request.path_params["id"])
    assert caller.grant is not None
    order = RunOrder(
        program,
        body.arguments,
        _rights(body, caller.tenant, caller.grant),
        body,
        _Completing(state, replace(caller, slot=None)),
        (body.seed or "").encode(),
    )
    record = sandbox.launch(order)
    if body.stream:
        return await respond(request, record.follow(-1), EVENTS)
    return json_response(record.shown())


async def runs(state: ServerState, request: Request) -> Response:
    """Return the runs of this key, the oldest first."""
    if state.inferlets is None:
        return json_response({"object": "list", "data": []})
    sandbox, caller = _sandbox(state)
    found = [run.shown() for run in sandbox.all(caller.tenant)]
    return json_response({"object": "list", "data": found})


async def retrieve(state: ServerState, request: Request) -> Response:
    """Return a run; with ``stream=true`` (query) its events after ``starting_after``, to its
    end."""
    sandbox, caller = _sandbox(state)
    record = sandbox.get(caller.tenant, request.path_params["id"])
    query = read_query(request, RunQuery)
    if query.stream == "false":
        return json_response(record.shown())
    after = -1 if query.starting_after is None else query.starting_after
    if record.status != "running" and after >= len(record.events) - 1:
        raise RequestError(
            f"The run has ended with event {len(record.events) - 1}; none follows {after}.",
            "starting_after",
        )
    return await respond(request, record.follow(after), EVENTS)


async def message(state: ServerState, request: Request) -> Response:
    """Send a message to a run, which reads it with ``receive`` or ``receive_blob``."""
    body = await read_body(request, MessageBody, state.body_limit)
    sandbox, caller = _sandbox(state)
    name = request.path_params["id"]
    sandbox.get(caller.tenant, name)
    if (body.text is None) == (body.data is None):
        raise RequestError("Give text, or data, base64: one of them.", "text")
    sent = _binary(body.data, "data") if body.data is not None else body.text
    assert sent is not None
    sandbox.send(caller.tenant, name, sent)
    return json_response({"id": name, "object": "inferlet.message"})


async def end(state: ServerState, request: Request) -> Response:
    """End a run, and delete it and its events."""
    sandbox, caller = _sandbox(state)
    name = request.path_params["id"]
    sandbox.end(caller.tenant, name)
    return json_response({"id": name, "object": "inferlet.run", "deleted": True})


class _Completing:
    """Answers a program's completion requests (leases) for the tenant that runs the program."""

    def __init__(self, state: ServerState, caller: Caller) -> None:
        self._state, self._caller = state, caller

    async def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answer a body of /generate for an inferlet. Raises RequestError and EngineLost."""
        request = convert(body, GenerateRequest)
        found: dict[str, Any] = msgspec.to_builtins(
            await generate(self._state.runtime, request, self._caller)
        )
        return found


def _sandbox(state: ServerState, code: str = "not_found") -> tuple[ProgramSandbox, Caller]:
    """Return the sandbox, and the caller, which may use it. Raises RequestError ``code`` if there
    is no sandbox, ServerError if the caller may not use it."""
    caller = CALLER.get()
    if state.inferlets is None:
        raise RequestError(
            "This server runs no inferlets; its operator starts it with --enable-inferlets.",
            code=code,
        )
    if caller.grant is None:
        raise ServerError(
            "forbidden",
            "This key may run no inferlets; its entry in --api-keys-file needs `inferlets`.",
        )
    return state.inferlets, caller


def _rights(body: RunBody, tenant: str, grant: InferletGrant) -> Rights:
    """Return the rights that a run requests. Raises ServerError if its key lacks any of them."""
    for name in ("store", "topics"):
        if getattr(body, name) and not getattr(grant, name):
            raise ServerError("forbidden", f"This key grants no {name}; run without `{name}`.")
    for host in body.hosts:
        if host not in grant.hosts and "*" not in grant.hosts:
            raise ServerError("forbidden", f"This key grants no host {host!r:.80}.")
    return Rights(owner=tenant, store=body.store, topics=body.topics, hosts=tuple(body.hosts))


def _binary(text: str | None, name: str) -> bytes:
    try:
        return base64.b64decode(text or "", validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"{name} is not valid base64: {error}.", name) from None
