"""The ASGI application: every route behind its guards, and how errors leave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from srt.program.completion import EngineLost
from srt.program.request import RequestError
from srt.server.edge.guard import Guard, ordinary
from srt.server.openapi.document import document
from srt.server.routes import ROUTES, Handler
from srt.server.service import Service
from srt.server.telemetry.journal import Journal
from srt.server.wire.errors import ServerError, error_response


def make_app(service: Service) -> FastAPI:
    """An application over one service; ``app.state.service`` is that service."""
    app = FastAPI(
        title="sglang",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        openapi_url="/openapi.json",
    )
    app.state.service = service
    paths: defaultdict[str, dict[str, Handler]] = defaultdict(dict)
    for route in ROUTES:
        paths[route.path][route.method] = route.handler
    for path, handlers in paths.items():
        app.add_api_route(path, _endpoint(service, handlers), methods=list(handlers),
                          response_class=Response)  # fmt: skip
    for error in (RequestError, ServerError, EngineLost, HTTPException, ClientDisconnect):
        app.add_exception_handler(error, _on_error)
    app.add_exception_handler(Exception, _on_error)
    app.add_middleware(Guard, service=service)
    templates = [str(getattr(route, "path", "")) for route in app.routes]
    app.add_middleware(Journal, service=service, paths=templates)
    _describe(app, service)
    return app


def _endpoint(
    service: Service, handlers: dict[str, Handler]
) -> Callable[[Request], Awaitable[Response]]:
    """All methods of one path: what is not among them is answered 405, with those that are."""

    async def endpoint(request: Request) -> Response:
        try:
            return await handlers[request.method](service, request)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Exception as error:  # before the framework, which would log what is expected
            return error_response(error, request.scope)

    return endpoint


async def _on_error(request: Request, error: Exception) -> Response:
    return error_response(error, request.scope)


def _describe(app: FastAPI, service: Service) -> None:
    """Let /openapi.json be made from the routes, on the first request for it."""

    def secured(path: str) -> bool:
        tenants = service.tenants
        return tenants.required or (tenants.guarded and not ordinary(path))

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = document(ROUTES, app.title, app.version, secured)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
