"""Guard: the checks before every route.

An orchestrator's probe always passes. Any other request is checked in this order: the request's id;
hosts and origins (403); CORS; the key (401) and its rights (403); draining (503); the key's limits
(429). An admitted request is counted until it is answered and its remaining work has ended.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable
from dataclasses import replace

from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import Caller, RequestSlot
from sglang.srt.runtime.tenants import Tenant
from sglang.srt.web.connection.hosts import Hosts
from sglang.srt.web.exchange.current_caller import CALLER
from sglang.srt.web.exchange.error_replies import ServerError, error_response
from sglang.srt.web.page.page_files import CHALLENGE, is_page, with_key
from sglang.srt.web.server_state import ServerState
from starlette.datastructures import MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

PROBES = frozenset({"/livez", "/readyz", "/startupz"})  # need no key; any host may call them
_WATCHING = frozenset({"/health", "/metrics", "/drain"})  # answered while draining, not counted
_ENDING = ("/abort_request", "/cancel")  # ends of paths without limits, because they free room
_ID = re.compile(rb"[!-~]{1,128}")

ORDINARY = frozenset({
    "/", "/health", "/health_generate", "/get_model_info", "/model_info", "/generate", "/encode",
    "/classify", "/tokenize", "/detokenize", "/tokenizer_info", "/apply-template", "/models",
    "/rerank", "/score", "/abort_request", "/openapi.json", "/docs", "/version", "/props",
    "/open_session", "/close_session",
})  # fmt: skip
ORDINARY_BELOW = ("/v1/", "/v2/", "/api/", "/explain/", "/page/")
RESERVED = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
"""Routes that every key may call, without RESERVED. All other routes need an admin's key."""


class Guard:
    """ASGI middleware. It denies every path that is not explicitly allowed."""

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app, self._state = app, state
        edge = state.config.edge
        self._hosts = Hosts(state.config.server.host, edge.allowed_hosts, edge.cors_allow_origins)
        self._checked: ASGIApp = self._admit
        if edge.cors_allow_origins:
            self._checked = CORSMiddleware(
                self._admit,
                allow_origins=self._hosts.origins,
                allow_methods=["GET", "POST", "DELETE"],
                allow_headers=["*"],
                expose_headers=["x-request-id", "request-id", "retry-after"],
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        number = request_id(scope)
        scope.setdefault("state", {})["request_id"] = number

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["x-request-id"] = headers["request-id"] = number  # request-id: Anthropic's
                if self._state.draining:  # the client's next request may reach another server
                    headers["connection"] = "close"
            await send(message)

        before = CALLER.set(Caller(number, admin=False))
        try:
            await self._enter(scope, receive, send_named)
        finally:
            CALLER.reset(before)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Verify hosts, then apply CORS if enabled, then ``_admit``. Answer probes at once."""
        if scope["path"] in PROBES:
            await self._app(scope, receive, send)
            return
        try:
            self._hosts.verify(scope)
        except ServerError as error:
            await error_response(error, scope)(scope, receive, send)
            return
        await self._checked(scope, receive, send)

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Verify key, rights and limits, then pass the request on; or answer with an error."""
        tenant, in_page, watching = None, is_page(scope), scope["path"] in _WATCHING
        try:
            headers = with_key(scope["headers"]) if in_page else scope["headers"]
            tenant = self._state.tenants.of(credential(headers))
            caller = self._caller(scope, tenant)
            if self._state.draining and not watching:
                raise ServerError("draining", "The server is shutting down.")
            if tenant is not None and counts(scope):
                tenant.enter()
                caller = replace(caller, slot=RequestSlot(tenant.leave))
        except (ServerError, RequestError) as error:
            response = error_response(error, scope)
            if in_page and error.code == "invalid_api_key":
                response.headers["WWW-Authenticate"] = CHALLENGE
            await response(scope, receive, send)
            return
        self._state.open_requests += not watching
        CALLER.set(caller)
        try:
            await self._app(scope, receive, send)
        finally:
            self._state.open_requests -= not watching
            if caller.slot is not None:
                caller.slot.release()

    def _caller(self, scope: Scope, tenant: Tenant | None) -> Caller:
        """Return the caller of a request. Raises ServerError if its key may not call the
        route."""
        number, path = scope["state"]["request_id"], scope["path"]
        if not self._state.tenants.guarded:
            return Caller(number)
        caller = Caller(number, admin=False) if tenant is None else tenant.caller(number)
        if caller.admin or ordinary(path):
            return caller
        if tenant is None:
            raise ServerError("invalid_api_key", f"{path[:100]} needs the admin's key.")
        raise ServerError("forbidden", f"{path[:100]} needs the admin's key, not this one.")


def ordinary(path: str) -> bool:
    """Whether every key may call this path."""
    return path in ORDINARY or (path.startswith(ORDINARY_BELOW) and path not in RESERVED)


def request_id(scope: Scope) -> str:
    """Return the request's id: the client's X-Request-Id if that is one printable word of at most
    128 characters, otherwise a new id."""
    given = [value for name, value in scope["headers"] if name == b"x-request-id"]
    if len(given) == 1 and _ID.fullmatch(given[0]):
        return str(given[0].decode("ascii"))
    return uuid.uuid4().hex


def counts(scope: Scope) -> bool:
    """Whether a request is subject to its key's limits."""
    return scope["method"] == "POST" and not scope["path"].endswith(_ENDING)


def credential(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    """Return the API key of a request's headers; None if there is none or more than one."""
    found: dict[bytes, bytes] = {}
    for name, value in headers:
        if name in found:
            return None
        if name == b"x-api-key":
            found[name] = value
        elif name == b"authorization":
            scheme, _, key = value.partition(b" ")
            found[name] = key.strip(b" ") if scheme.lower() == b"bearer" else b""
    keys = set(found.values())
    return keys.pop() if len(keys) == 1 else None
