"""Errors as clients see them: ``{"error": {"message", "type", "param", "code"}}`` and a status."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import Response

from srt.program.completion import EngineLost
from srt.program.request import RequestError

log = logging.getLogger("sglang.server")

CODES: dict[str, tuple[int, str]] = {
    "invalid_value": (400, "invalid_request_error"),
    "context_length_exceeded": (400, "invalid_request_error"),
    "unsupported": (400, "invalid_request_error"),
    "busy": (400, "invalid_request_error"),
    "invalid_api_key": (401, "authentication_error"),
    "forbidden": (403, "permission_error"),
    "not_found": (404, "not_found_error"),
    "method_not_allowed": (405, "invalid_request_error"),
    "body_too_large": (413, "invalid_request_error"),
    "unsupported_media_type": (415, "invalid_request_error"),
    "queue_full": (429, "rate_limit_error"),
    "internal_error": (500, "server_error"),
    "engine_lost": (503, "server_error"),
    "draining": (503, "server_error"),
}
"""Stable codes: status and OpenAI's type."""

_RETRY = {"queue_full": "1", "draining": "5", "engine_lost": "5"}  # seconds
_OF_STATUS = {404: "not_found", 405: "method_not_allowed"}


class ServerError(Exception):
    """An error of the server's own, by its code in ``CODES``."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


def describe(error: BaseException) -> tuple[str, dict[str, Any]]:
    """The code and the body of any exception; what is not expected is logged, not shown."""
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
        code, message = "internal_error", "An internal error occurred; the server's log has it."
    kind = CODES[code][1]
    body = {"message": message, "type": kind, "param": param, "code": code}
    return code, {"error": body}


def error_response(error: BaseException) -> Response:
    code, body = describe(error)
    headers = {"Retry-After": _RETRY[code]} if code in _RETRY else {}
    if code == "invalid_api_key":
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, HTTPException) and error.headers:
        headers.update(error.headers)
    return json_response(body, CODES[code][0], headers)


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Strict JSON: numbers that JSON lacks become null."""
    return Response(
        msgspec.json.encode(value), status, headers=headers, media_type="application/json"
    )
