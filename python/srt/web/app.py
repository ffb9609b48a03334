"""The ASGI application: all routes behind their guards, and the handling of errors."""

from __future__ import annotations

from collections import defaultdict
from functools import cache

import msgspec
from sglang.srt.core.version import __version__
from sglang.srt.requests.completion.completer import EngineLost
from sglang.srt.requests.request_error import RequestError
from sglang.srt.web.connection.guard import PROBES, Guard, ordinary
from sglang.srt.web.exchange.error_replies import ServerError, error_response
from sglang.srt.web.journal import Journal
from sglang.srt.web.openapi.openapi_document import document
from sglang.srt.web.openapi.reference_page import HEADERS, reference
from sglang.srt.web.route import JSON, Handler
from sglang.srt.web.routes import ROUTES
from sglang.srt.web.server_state import ServerState
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send


def make_app(state: ServerState) -> Starlette:
    """Return the application of a server; ``app.state.server`` is the server's state."""
    paths: defaultdict[str, dict[str, Handler]] = defaultdict(dict)
    # Starlette tries routes in order. Streaming routes are first, so that they are found quickly.
    # Routes with parameters are last, so that no fixed path is taken for an id.
    for route in sorted(ROUTES, key=lambda route: ("{" in route.path, not route.streams)):
        paths[route.path][route.method] = route.handler
    for path in ("/", "/health", *PROBES):  # Ollama's command and load balancers send HEAD
        paths[path]["HEAD"] = paths[path]["GET"]
    paths["/openapi.json"]["GET"], paths["/docs"]["GET"] = _described(state)
    served = [Route(path, _Endpoint(state, handlers), methods=list(handlers))
              for path, handlers in paths.items()]  # fmt: skip
    for endpoint, handlers in zip(served, paths.values()):
        endpoint.methods = set(handlers)  # Starlette adds HEAD wherever GET is served
    app = Starlette(routes=served)
    app.router.redirect_slashes = False
    app.state.server = state
    for error in (RequestError, ServerError, EngineLost, HTTPException, ClientDisconnect):
        app.add_exception_handler(error, _on_error)
    app.add_exception_handler(Exception, _on_error)
    app.add_middleware(Guard, state=state)
    app.add_middleware(Journal, state=state, paths=list(paths))
    return app


class _Endpoint:
    """All methods of one path, as an ASGI application. Starlette answers other methods with 405.

    The class converts errors to responses itself, because Starlette would log expected ones.
    """

    def __init__(self, state: ServerState, handlers: dict[str, Handler]) -> None:
        self._state, self._handlers = state, handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        try:
            response = await self._handlers[request.method](self._state, request)
        except ClientDisconnect:
            response = Response(status_code=499)  # no client is left to read it
        except Exception as error:
            response = error_response(error, scope)
        await response(scope, receive, send)


async def _on_error(request: Request, error: Exception) -> Response:
    return error_response(error, request.scope)


def _described(state: ServerState) -> tuple[Handler, Handler]:
    """Return the handlers of /openapi.json and /docs. The document is made from the routes at the
    first request."""

    def secured(path: str) -> bool:
        tenants = state.tenants
        if path in PROBES:
            return False
        return tenants.required or (tenants.guarded and not ordinary(path))

    @cache
    def content() -> bytes:
        return msgspec.json.encode(document(ROUTES, "sglang", __version__, secured))

    @cache
    def page() -> str:
        return reference(msgspec.json.decode(content()))

    async def describe(state: ServerState, request: Request) -> Response:
        return Response(content(), media_type=JSON)

    async def show(state: ServerState, request: Request) -> Response:
        return HTMLResponse(page(), headers=HEADERS)

    return describe, show
