"""Guard: what stands before every route: the API key, draining, and the count of open requests."""

from __future__ import annotations

import hashlib
import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from srt.server.errors import ServerError, error_response
from srt.server.service import Service

_ALWAYS = ("/health", "/metrics")  # answered while draining (health says so itself)


class Guard:
    """ASGI middleware. Deny by default: whatever the path, no key means 401."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app, self._service = app, service
        key = service.config.server.api_key
        # A client may have written a non-ASCII key in either of two encodings.
        encodings = ("utf-8", "latin-1") if _fits_latin(key) else ("utf-8",)
        self._digests = [_digest(key.encode(name)) for name in encodings] if key else []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        if self._digests and not self._authorised(scope):
            error = ServerError("invalid_api_key", "Send 'Authorization: Bearer KEY'.")
            await error_response(error)(scope, receive, send)
            return
        if self._service.draining and scope["path"] not in _ALWAYS:
            error = ServerError("draining", "The server is shutting down.")
            await error_response(error)(scope, receive, send)
            return
        self._service.open_requests += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._service.open_requests -= 1

    def _authorised(self, scope: Scope) -> bool:
        """Digests have one length, so the time of comparing tells nothing of the key."""
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        scheme, _, key = given[0].partition(b" ") if len(given) == 1 else (b"", b"", b"")
        found = _digest(key.strip(b" "))
        same = [hmac.compare_digest(found, digest) for digest in self._digests]
        return any(same) and scheme.lower() == b"bearer"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _fits_latin(key: str) -> bool:
    return all(ord(char) < 256 for char in key)
