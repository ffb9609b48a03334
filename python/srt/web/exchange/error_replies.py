"""Errors in the form that clients get: ``{"error": {"message", "type", "param", "code"}}``.

On Anthropic's routes: ``{"type": "error", "error": {"type", "message", "details": {"error_code"}},
"request_id"}``. On Ollama's: ``{"error": message}``.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from sglang.srt.requests.completion.completer import EngineLost, SuspectRequest
from sglang.srt.requests.request_error import RequestError, brief
from sglang.srt.web.exchange.current_caller import CALLER
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

log = logging.getLogger("sglang.server")

CODES: dict[str, tuple[int, str]] = {
    "invalid_value": (400, "invalid_request_error"),
    "context_length_exceeded": (400, "invalid_request_error"),
    "unsupported": (400, "invalid_request_error"),
    "busy": (400, "invalid_request_error"),
    "previous_response_not_found": (400, "invalid_request_error"),
    "malformed_request": (400, "invalid_request_error"),
    "thread_unsupported_request": (400, "invalid_request_error"),
    "invalid_api_key": (401, "authentication_error"),
    "forbidden": (403, "permission_error"),
    "not_found": (404, "not_found_error"),
    "method_not_allowed": (405, "invalid_request_error"),
    "request_timeout": (408, "invalid_request_error"),
    "conflict": (409, "invalid_request_error"),
    "expired": (410, "invalid_request_error"),
    "body_too_large": (413, "invalid_request_error"),
    "unsupported_media_type": (415, "invalid_request_error"),
    "queue_full": (429, "rate_limit_error"),
    "rate_limit_exceeded": (429, "rate_limit_error"),
    "headers_too_large": (431, "invalid_request_error"),
    "internal_error": (500, "server_error"),
    "engine_lost": (503, "server_error"),
    "engine_stalled": (503, "server_error"),
    "draining": (503, "server_error"),
    "paused": (503, "server_error"),
    "too_many_connections": (503, "server_error"),
    "overloaded": (503, "server_error"),
}
"""Stable codes: status and OpenAI's type."""

_RETRY = {
    "queue_full": 1, "rate_limit_exceeded": 1, "draining": 5, "paused": 5, "engine_lost": 5,
    "engine_stalled": 5,
    "too_many_connections": 5, "overloaded": 5,
}  # fmt: skip
"""Default ``Retry-After`` by code, in seconds."""

_OF_STATUS = {404: "not_found", 405: "method_not_allowed"}
_ANTHROPIC = "/v1/messages"  # this path and those below it
_ANTHROPIC_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 500: "api_error", 503: "overloaded_error",
}  # fmt: skip
"""Anthropic's error types by status; other statuses have ``invalid_request_error``."""


class ServerError(Exception):
    """An error of HTTP or of the server's state. ``code``: key of ``CODES``; ``retry``: seconds
    after which the client may retry."""

    def __init__(self, code: str, message: str, retry: int | None = None) -> None:
        self.code, self.message, self.retry = code, brief(message), retry
        super().__init__(self.message)


def describe(error: BaseException) -> tuple[str, dict[str, Any]]:
    """Return code and body of any exception. An unexpected one is logged, and not shown."""
    param = None
    if isinstance(error, RequestError):
        code, message, param = error.code, error.message, error.param
    elif isinstance(error, ServerError):
        code, message = error.code, error.message
    elif isinstance(error, EngineLost):
        code, message = "engine_lost", f"The engine has stopped: {error}"
    elif isinstance(error, HTTPException):
        code = _OF_STATUS.get(error.status_code, "invalid_value")
        message = str(error.detail)
    else:
        log.error("internal error", exc_info=error)
        code, message = "internal_error", "An internal error occurred; see the server's log."
    kind = CODES[code][1]
    body = {"message": message, "type": kind, "param": param, "code": code}
    return code, {"error": body}


def anthropic_body(error: BaseException) -> dict[str, Any]:
    """Return the body of any exception in Anthropic's format."""
    return _anthropic(*describe(error), CALLER.get().request)


def _anthropic(code: str, body: dict[str, Any], request: str) -> dict[str, Any]:
    kind = _ANTHROPIC_TYPES.get(CODES[code][0], "invalid_request_error")
    message = body["error"]["message"]
    if code == "context_length_exceeded":
        message = f"prompt is too long: {message}"  # clients search for these words
    found = {"type": kind, "message": message, "details": {"error_code": code}}
    return {"type": "error", "error": found, "request_id": request or None}


def ollama(path: str) -> bool:
    """Whether errors of this path have Ollama's format."""
    return path.startswith("/api/")


def anthropic(path: str) -> bool:
    """Whether errors of this path have Anthropic's format."""
    return path == _ANTHROPIC or path.startswith(f"{_ANTHROPIC}/")


def error_response(error: BaseException, scope: Scope | None = None) -> Response:
    """Return the response to an error, in the format of the API of ``scope``'s path."""
    code, body = describe(error)
    if scope and anthropic(scope["path"]):
        body = _anthropic(code, body, scope.get("state", {}).get("request_id", ""))
    elif scope and ollama(scope["path"]):
        body = {"error": body["error"]["message"]}
    retry = getattr(error, "retry", None) or _RETRY.get(code)
    if isinstance(error, SuspectRequest):
        retry = None  # a retry might make another engine fail
    headers = {"Retry-After": str(retry)} if retry else {}
    if code == "invalid_api_key":
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, HTTPException) and error.headers:
        headers.update(error.headers)
    return json_response(body, CODES[code][0], headers)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return a response in strict JSON: NaN and infinities become null."""
    return Response(
        msgspec.json.encode(value), status, headers=headers, media_type="application/json"
    )
