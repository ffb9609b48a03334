"""Request bodies: strict JSON, bounded in size and depth, converted to a struct."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar

import msgspec
from sglang.srt.requests.strict_json import parse
from sglang.srt.runtime.request_fields import convert
from sglang.srt.web.exchange.error_replies import ServerError
from starlette.requests import Request

MOST_BODIES = 64  # bodies of the largest size that may arrive at once
SMALL = 64 << 10  # bytes up to which a body is always read, despite MOST_BODIES

T = TypeVar("T", bound=msgspec.Struct)


async def read_body(request: Request, kind: type[T], limit: int) -> T:
    """Read the body as ``kind``. Raises ServerError (413, 415, 503) or RequestError (400)."""
    data = await _read(request, limit)
    # A large body is parsed in a thread, so that other requests can run meanwhile.
    value = parse(data) if len(data) <= SMALL else await asyncio.to_thread(parse, data)
    return convert(value, kind)


async def read_optional_body(request: Request, kind: type[T], limit: int) -> T:
    """Read the body as ``kind``; an empty body means ``{}``. Raises the errors of ``read_body``."""
    if "content-type" not in request.headers or request.headers.get("content-length") == "0":
        if await _collect(request, limit):
            raise ServerError("unsupported_media_type", "Send Content-Type: application/json.")
        return convert({}, kind)
    return await read_body(request, kind, limit)


async def _read(request: Request, limit: int) -> bytes:
    media, _, parameters = request.headers.get("content-type", "").partition(";")
    media = media.strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        raise ServerError(
            "unsupported_media_type",
            f"Content-Type is {media or 'missing'}; send application/json.",
        )
    charset = re.search(r"charset\s*=\s*\"?([\w-]+)", parameters, re.IGNORECASE)
    if charset and charset[1].lower() not in ("utf-8", "utf8", "us-ascii"):
        raise ServerError("unsupported_media_type", f"charset is {charset[1]}; use utf-8.")
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise ServerError(
            "unsupported_media_type", f"Content-Encoding is {encoding}; send the body as it is."
        )
    return await _collect(request, limit)


async def _collect(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise _too_large(int(declared), limit)
    parts: list[bytes] = []
    size = 0
    try:
        async for part in request.stream():
            size += len(part)
            _arriving.size += len(part)
            if size > limit:
                raise _too_large(size, limit)
            if size > SMALL and _arriving.size > MOST_BODIES * limit:
                raise ServerError(
                    "overloaded",
                    f"Bodies of {_arriving.size} bytes are arriving, more than {MOST_BODIES} of "
                    "the largest size (--max-body-bytes); try again later.",
                )
            parts.append(part)
    finally:
        _arriving.size -= size
    return b"".join(parts)


class _Arriving:
    """Number of received bytes of all incomplete bodies."""

    size = 0


_arriving = _Arriving()


def _too_large(size: int, limit: int) -> ServerError:
    return ServerError(
        "body_too_large",
        f"The body has at least {size} bytes; at most {limit} (--max-body-bytes).",
    )
