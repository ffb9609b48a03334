"""Page: the files of the page at ``/``. They need nothing from elsewhere, run no inline script."""

from __future__ import annotations

import base64
import binascii
from functools import cache
from importlib.resources import files

from sglang.srt.web.exchange.error_replies import ServerError
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

PATHS = ("/", "/page/{name}")
CHALLENGE = 'Basic realm="the password is the API key", charset="UTF-8"'

Headers = list[tuple[bytes, bytes]]

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'; require-trusted-types-for 'script'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def is_page(scope: Scope) -> bool:
    """Whether a request is for a file of the page, or for the reference."""
    path = scope["path"]
    return scope["method"] in ("GET", "HEAD") and (
        path in ("/", "/docs") or path.startswith("/page/")
    )


def with_key(headers: Headers) -> Headers:
    """The headers, Basic authorization become Bearer with its password.

    A browser that opens a page can ask its user for a password and for nothing else. It sends that
    by itself, on other sites' behalf too: so it may open the page's files, and nothing that acts.
    """
    return [
        (name, _bearer(value) if name == b"authorization" else value) for name, value in headers
    ]


def _bearer(value: bytes) -> bytes:
    scheme, _, rest = value.partition(b" ")
    if scheme.lower() != b"basic":
        return value
    try:
        _, _, password = base64.b64decode(rest.strip(), validate=True).partition(b":")
    except binascii.Error:
        return value
    return b"Bearer " + password


async def index(state: ServerState, request: Request) -> Response:
    """The page: a chat, a playground for programs, and a view of the engine at work."""
    return _answer("index.html")


async def asset(state: ServerState, request: Request) -> Response:
    """One of the page's files."""
    return _answer(request.path_params["name"])


def _answer(name: str) -> Response:
    """Raises ServerError for a name that is not one of the page's."""
    found = _files().get(name)
    if found is None:
        raise ServerError("not_found", f"The page has no file {name!r:.80}.")
    kind = _KINDS[name[name.rindex(".") :]]
    return Response(found, headers={**_HEADERS, "Content-Type": kind})


@cache
def _files() -> dict[str, bytes]:
    """All files by name. A requested name is looked up here, never on the disk."""
    folder = files("sglang.srt.web.page").joinpath("static")
    return {
        entry.name: entry.read_bytes()
        for entry in folder.iterdir()
        if entry.is_file() and entry.name.endswith(tuple(_KINDS))
    }
