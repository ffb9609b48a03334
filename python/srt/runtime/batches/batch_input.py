"""Input of a batch: one JSON request on each line. All lines are checked before any is run.

{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from sglang.srt.requests.request_error import RequestError, shown
from sglang.srt.requests.strict_json import parse

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
MAX_CUSTOM_ID = 512  # characters
MAX_ERRORS = 100  # errors that are kept of one file


class BatchLine(msgspec.Struct):
    """One line; ``body`` is JSON, which the route of ``url`` will read."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class _Flags(msgspec.Struct):
    """Fields of a body that a batch does not support."""

    stream: Any = None
    background: Any = None


class InputError(msgspec.Struct):
    """An error in a batch's file. ``line``: number of the line, from 1; None: no single line."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class InputLimits(NamedTuple):
    """Most lines of a file, and most bytes of a line."""

    lines: int
    line_bytes: int


_decode = msgspec.json.Decoder(BatchLine).decode
_flags = msgspec.json.Decoder(_Flags).decode


def numbered(path: Path, most: int) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not blank, with their numbers from 0. A line of more than ``most``
    bytes is cut to ``most + 1`` bytes and ends the iteration. Raises OSError."""
    with open(path, "rb") as file:
        number = 0
        while line := file.readline(most + 1):
            if line.strip():
                yield number, line
            if len(line) > most:
                return
            number += 1


def lines(path: Path, most: int) -> Iterator[tuple[int, BatchLine]]:
    """Yield numbers and requests of a checked file. Raises OSError."""
    for number, line in numbered(path, most):
        yield number, _decode(line)


def check(path: Path, endpoint: str, limits: InputLimits) -> tuple[int, list[InputError]]:
    """Return the number of requests of a file, and at most MAX_ERRORS errors. Raises OSError."""
    seen, errors = set[str](), list[InputError]()
    count = 0
    for number, line in numbered(path, limits.line_bytes):
        count += 1
        if count > limits.lines:
            message = f"The file has more than {limits.lines} requests (--batch-max-lines)."
            return count, [*errors, InputError("too_many_requests", f"{message} Cut it.")]
        found = _wrong(line, endpoint, limits, seen)
        if found is not None:
            errors.append(InputError(found[0], found[2], number + 1, found[1]))
            if len(errors) == MAX_ERRORS:
                return count, errors
    if not count:
        errors.append(InputError("empty_file", "The file has no request; give one a line."))
    return count, errors


def _wrong(
    line: bytes, endpoint: str, limits: InputLimits, seen: set[str]
) -> tuple[str, str | None, str] | None:
    """Return code, field and message of the error in a line, None for a valid line. The line's
    ``custom_id`` is added to ``seen``."""
    if len(line) > limits.line_bytes:
        most = limits.line_bytes
        return "line_too_long", None, f"The line has more than {most} bytes (--max-body-bytes)."
    try:
        found = _decode(line)
        flags = _flags(found.body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return "invalid_json_line", None, _reason(line, error)
    if not 1 <= len(found.custom_id) <= MAX_CUSTOM_ID:
        length = len(found.custom_id)
        message = f"custom_id has {length} characters; give 1 to {MAX_CUSTOM_ID}."
        return "invalid_custom_id", "custom_id", message
    if found.custom_id in seen:
        message = f"custom_id {shown(found.custom_id)} is used by an earlier line; make it unique."
        return "duplicate_custom_id", "custom_id", message
    seen.add(found.custom_id)
    if found.method != "POST":
        return "invalid_method", "method", f"method is {shown(found.method)}; give 'POST'."
    if found.url != endpoint:
        message = f"url is {shown(found.url)}; the batch's endpoint is {endpoint!r}."
        return "mismatched_url", "url", message
    for name in ("stream", "background"):
        if getattr(flags, name):
            return "invalid_body", f"body.{name}", f"body.{name} is set; remove it from the line."
    return None


def _reason(line: bytes, error: Exception) -> str:
    """Return why a line is no request: the message of the strict JSON parser, if that refuses the
    line too."""
    try:
        parse(line, "The line")
    except RequestError as refusal:
        return refusal.message
    return f"The line is no request: {error}."
