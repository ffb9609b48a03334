"""Media: an image or a video inside a prompt, as bytes or as an address."""

from __future__ import annotations

import base64
import mimetypes
import os
import re
from dataclasses import dataclass
from io import BytesIO
from typing import Any

SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"),
)


@dataclass(frozen=True, repr=False)
class Media:
    """One image or video.

    Attributes:
        kind: "image" or "video".
        data: the file's bytes; empty where there is only a URL.
        mime: for instance "image/png".
        url: http(s) address that the backend is to fetch, or "".
        num_frames: frames to take of a video.
    """

    kind: str
    data: bytes = b""
    mime: str = ""
    url: str = ""
    num_frames: int = 0

    @property
    def base64(self) -> str:
        """The bytes, encoded."""
        return base64.b64encode(self.data).decode("ascii")

    @property
    def address(self) -> str:
        """A URL that carries or names the medium: ``data:`` or the address given."""
        return self.url or f"data:{self.mime};base64,{self.base64}"

    def __repr__(self) -> str:
        what = self.url or f"{self.mime}, {len(self.data)} bytes"
        return f"<{self.kind}: {what}>"


def medium(kind: str, source: Any, num_frames: int = 0) -> Media:
    """A Media of a path, bytes, a PIL image, a ``data:`` URL or an http(s) URL.

    Raises:
        TypeError, ValueError: ``source`` is none of these, or empty.
        OSError: the file cannot be read.
    """
    if isinstance(source, Media):
        return source
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _of_bytes(kind, bytes(source), "", num_frames)
    if isinstance(source, os.PathLike):
        source = os.fspath(source)
    if isinstance(source, str):
        return _of_text(kind, source, num_frames)
    if hasattr(source, "save") and hasattr(source, "mode"):  # a PIL image, without importing PIL
        out = BytesIO()
        source.save(out, format="PNG")
        return Media(kind, out.getvalue(), "image/png", num_frames=num_frames)
    raise TypeError(
        f"{kind} is {source!r:.60}; give a path, bytes, a PIL image, a data: URL or an http URL"
    )


def sent(kind: str, value: Any) -> Any:
    """``image_data`` or ``video_data`` of a request with bytes, PIL images and files of this
    process in place: the runtime is given URLs. Lists are gone through. Raises the errors of
    ``medium``."""
    if isinstance(value, (list, tuple)):
        return [sent(kind, one) for one in value]
    if isinstance(value, dict) and "url" in value:
        return {**value, "url": sent(kind, value["url"])}
    if value is None or (isinstance(value, str) and not _is_file(value)):
        return value
    return medium(kind, value).address


def _is_file(text: str) -> bool:
    return len(text) < 4096 and "\0" not in text and os.path.isfile(text)


def _of_text(kind: str, source: str, num_frames: int) -> Media:
    if re.match(r"https?://", source, re.IGNORECASE):
        return Media(kind, url=source, num_frames=num_frames)
    if source[:5].lower() == "data:":
        head, comma, body = source[5:].partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise ValueError(f"{kind} is {source[:40]!r}; a data URL is data:TYPE;base64,...")
        try:
            data = base64.b64decode(body, validate=True)
        except ValueError as error:
            raise ValueError(f"the {kind}'s data URL is not base64: {error}") from error
        return _of_bytes(kind, data, head.partition(";")[0], num_frames)
    if not source:
        raise ValueError(f"the {kind} is ''; give a path, bytes, a data: URL or an http URL")
    with open(source, "rb") as file:
        data = file.read()
    return _of_bytes(kind, data, mimetypes.guess_type(source)[0] or "", num_frames)


def _of_bytes(kind: str, data: bytes, mime: str, num_frames: int) -> Media:
    """The signature of the bytes counts before the name that was given for them."""
    if not data:
        raise ValueError(f"the {kind} is empty: 0 bytes")
    known = next((name for begin, name in SIGNATURES if data.startswith(begin)), "")
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        known = "image/webp"
    if not known:
        known = mime or ("image/png" if kind == "image" else "video/mp4")
    if known.partition("/")[0] != kind and known != "image/gif":
        raise ValueError(f"the {kind} is of type {known}; give a file of a type {kind}/...")
    return Media(kind, data, known, num_frames=num_frames)
