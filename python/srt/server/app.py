"""The ASGI application: every route, its body's schema, and how errors leave."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from srt.program.completion import EngineLost
from srt.program.request import RequestError
from srt.server import admin, chat, completions, native, talk
from srt.server.errors import ServerError, error_response
from srt.server.guard import Guard
from srt.server.service import Service

Handler = Callable[[Service, Request], Awaitable[Response]]

_GET: list[tuple[str, Handler]] = [
    ("/health", admin.health),
    ("/health_generate", admin.health_generate),
    ("/get_model_info", admin.model_info),
    ("/model_info", admin.model_info),
    ("/get_server_info", admin.server_info),
    ("/server_info", admin.server_info),
    ("/metrics", admin.metrics),
    ("/v1/models", admin.models),
    ("/v1/models/{name:path}", admin.model),
    ("/tokenizer_info", admin.tokenizer_info),
    ("/flush_cache", admin.flush_cache),
]
_POST: list[tuple[str, Handler, type | None]] = [
    ("/generate", native.generate, native.GenerateBody),
    ("/v1/completions", completions.completions, completions.CompletionBody),
    ("/v1/chat/completions", chat.chat_completions, talk.ChatBody),
    ("/flush_cache", admin.flush_cache, None),
    ("/abort_request", admin.abort_request, admin.AbortBody),
    ("/tokenize", admin.tokenize, admin.TokenizeBody),
    ("/detokenize", admin.detokenize, admin.DetokenizeBody),
]
_REF = "#/components/schemas/{name}"


def make_app(service: Service) -> FastAPI:
    """An application over one service; ``app.state.service`` is that service."""
    app = FastAPI(title="sglang", docs_url="/docs", redoc_url=None, openapi_url="/openapi.json")
    app.state.service = service
    for path, handler in _GET:
        app.add_api_route(path, _endpoint(service, handler), methods=["GET"],
                          name=_name(handler, path), response_class=Response)  # fmt: skip
    for path, handler, kind in _POST:
        app.add_api_route(path, _endpoint(service, handler), methods=["POST"],
                          name=_name(handler, path), response_class=Response,
                          openapi_extra=_schema(kind))  # fmt: skip
    for error in (RequestError, ServerError, EngineLost, HTTPException, ClientDisconnect):
        app.add_exception_handler(error, _on_error)
    app.add_exception_handler(Exception, _on_error)
    app.add_middleware(Guard, service=service)
    _describe_bodies(app)
    return app


def _endpoint(service: Service, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        try:
            return await handler(service, request)
        except ClientDisconnect:
            return Response(status_code=499)  # nobody reads it
        except Exception as error:  # before the framework, which would log what is expected
            return error_response(error)

    endpoint.__doc__ = handler.__doc__
    return endpoint


async def _on_error(request: Request, error: Exception) -> Response:
    return error_response(error)


def _name(handler: Handler, path: str) -> str:
    return f"{handler.__name__} {path}"


def _schema(kind: type | None) -> dict[str, Any] | None:
    if kind is None:
        return None
    schema = {"$ref": _REF.format(name=kind.__name__)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def _describe_bodies(app: FastAPI) -> None:
    """Let /openapi.json hold the bodies' schemas, which are made on the first request for it."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            kinds = [kind for _, _, kind in _POST if kind is not None]
            _, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
            document = get_openapi(title=app.title, version=app.version, routes=app.routes)
            document.setdefault("components", {}).setdefault("schemas", {}).update(schemas)
            app.openapi_schema = document
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
