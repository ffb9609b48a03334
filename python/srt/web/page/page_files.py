"""Page: the files of the web page at ``/``. They load nothing from other sites, and have no inline
scripts.

Third-party libraries are in ``static/vendor``, each with its licence; ``vendored.json`` lists their
versions and hashes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from sglang.srt.web.exchange.error_replies import ServerError
from sglang.srt.web.server_state import ServerState
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

PATHS = ("/", "/page/{name:path}")
CHALLENGE = 'Basic realm="the password is the API key", charset="UTF-8"'

Headers = list[tuple[bytes, bytes]]

_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".woff2": "font/woff2",
    ".txt": "text/plain; charset=utf-8",
}
# Images of a conversation are data: and blob: URLs that the browser makes. Only the sanitizer's
# trusted-types policy may turn text into markup.
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data: blob:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; frame-src 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types dompurify",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def is_page(scope: Scope) -> bool:
    """Whether a request is for a file of the page, or for the reference (/docs)."""
    path = scope["path"]
    return scope["method"] in ("GET", "HEAD") and (
        path in ("/", "/docs") or path.startswith("/page/")
    )


def with_key(headers: Headers) -> Headers:
    """Return the headers with Basic authorization replaced by Bearer with its password.

    When a browser opens a page, Basic is the only way to enter a key. But a browser also sends
    Basic authorization with requests that other sites cause. So it is accepted only for the page's
    files, and not for routes with an effect.
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


class PageFile(NamedTuple):
    """A file of the page, its media type, and the entity tag of its content."""

    content: bytes
    kind: str
    tag: str


async def index(state: ServerState, request: Request) -> Response:
    """Return the web page: a chat, a playground for programs, and a live view of the engine."""
    return _answer(request, "index.html")


async def asset(state: ServerState, request: Request) -> Response:
    """Return one of the page's files."""
    return _answer(request, request.path_params["name"])


def _answer(request: Request, name: str) -> Response:
    """Return the file, or 304 if the browser has it. Raises ServerError for an unknown name."""
    found = _files().get(name)
    if found is None:
        raise ServerError("not_found", f"The page has no file {name!r:.80}.")
    headers = {**_HEADERS, "Content-Type": found.kind, "ETag": found.tag}
    if request.headers.get("if-none-match") == found.tag:
        return Response(status_code=304, headers=headers)
    return Response(found.content, headers=headers)


@cache
def _files() -> dict[str, PageFile]:
    """Return all files by path. A requested path is only looked up in this dict, not on disk."""
    folder = Path(__file__).parent / "static"
    return {
        path.relative_to(folder).as_posix(): _read(path)
        for path in folder.rglob("*")
        if path.suffix in _KINDS
    }


def _read(path: Path) -> PageFile:
    content = path.read_bytes()
    tag = hashlib.sha256(content).hexdigest()[:32]
    return PageFile(content, _KINDS[path.suffix], f'"{tag}"')
