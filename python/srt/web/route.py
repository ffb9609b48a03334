"""Route: one method of one path, for the application and for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response

Handler = Callable[[ServerState, Request], Awaitable[Response]]

JSON, EVENTS, TEXT = "application/json", "text/event-stream", "text/plain"
LINES, FORM, BYTES = "application/x-ndjson", "multipart/form-data", "application/octet-stream"
PAGE = (
    "text/html", "text/javascript", "text/css", "image/svg+xml", "font/woff2", "text/plain",
)  # fmt: skip


@dataclass(frozen=True)
class Route:
    """One method of one path.

    Attributes:
        reply: type of the JSON of a 200; None if the answer is not JSON.
        body: type of the request's JSON body; None if there is none.
        optional: the body may be left out.
        query: the query's parameters as a struct.
        media: content types of a 200.
        form: fields of a multipart body, if the request has one; the field ``file`` is a file.
    """

    method: str
    path: str
    handler: Handler
    reply: Any = None
    body: type | None = None
    query: type[msgspec.Struct] | None = None
    media: tuple[str, ...] = (JSON,)
    optional: bool = False
    form: tuple[str, ...] = ()

    @property
    def streams(self) -> bool:
        """Whether the route may answer with a stream."""
        return EVENTS in self.media or LINES in self.media

    @property
    def page(self) -> bool:
        """Whether the route serves a file of the web page."""
        return self.media[0] == PAGE[0]
