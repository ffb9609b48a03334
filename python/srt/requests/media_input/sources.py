"""Sources: the origin of the images and videos of a request, and the reading of their bytes.

data:...;base64,...   the bytes themselves; plain base64 is accepted too
file:///a/b, a/b.png  a file of the server, below the one allowed directory
http://, https://     fetched, if that is allowed (``requests/media_input/fetch``)
"""

from __future__ import annotations

import base64
import os
import re
import stat
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from sglang.srt.requests.request_error import RequestError

SHOWN = 80  # characters of a source in an error
_FILE = re.compile(r"\.(png|jpe?g|webp|gif|bmp|mp4|m4v|mov|webm|mkv|avi|mpe?g|ogv|flv)\Z", re.I)


class MediaSource(NamedTuple):
    """One image or video of a prompt.

    Attributes:
        kind: "image" or "video".
        text: a URL, a path, or base64.
        where: name of the source in errors, such as "image_data[0]".
        num_frames: number of frames to read of a video; 0: the server's default.
    """

    kind: str
    text: str
    where: str
    num_frames: int = 0

    @property
    def remote(self) -> bool:
        return self.text[:8].lower().startswith(("http://", "https://"))

    @property
    def file(self) -> bool:
        return self.text[:5].lower() == "file:" or (
            len(self.text) < 4096 and self.text[:5].lower() != "data:"
            and _FILE.search(self.text) is not None
        )  # fmt: skip

    @property
    def param(self) -> str:
        """The field of the request that holds the source."""
        return re.split(r"[\[.]", self.where, maxsplit=1)[0]

    def refused(self, message: str, code: str = "invalid_value") -> RequestError:
        return RequestError(f"{self.where}: {message}", self.param, code)


def source_of(kind: str, value: Any, where: str) -> MediaSource:
    """Return the source that is given as a text, or as an object with ``url`` and, for a video,
    ``num_frames``. Raises RequestError."""
    frames = 0
    if isinstance(value, Mapping):
        frames = value.get("num_frames") or 0
        value = value.get("url")
    if not isinstance(value, str) or not value:
        raise MediaSource(kind, "", where).refused(
            f"an {kind} is given as {type(value).__name__}; give a data URL (data:{kind}/...;"
            "base64,...), or the same in url."
        )
    if isinstance(frames, bool) or not isinstance(frames, int) or frames < 0:
        raise MediaSource(kind, "", where).refused(
            f"num_frames is {frames!r}; give a whole number."
        )
    return MediaSource(kind, value, where, frames)


def sources_of(kind: str, value: Any, count: int, name: str) -> list[list[MediaSource]]:
    """Return the sources of each of ``count`` prompts. The field holds one source for all prompts,
    a list for a single prompt, or a list with one source or one list of sources for each prompt.
    Null means no source. Raises RequestError."""
    if value is None:
        return [[] for _ in range(count)]
    if not isinstance(value, list):
        return [[source_of(kind, value, name)] for _ in range(count)]
    if count == 1:
        value = value[0] if value and isinstance(value[0], list) else value
        return [_each(kind, value, name)]
    if len(value) != count:
        raise RequestError(f"{name} has {len(value)} entries for {count} prompts.", name)
    return [
        _each(kind, entry if isinstance(entry, list) else [entry], f"{name}[{i}]")
        for i, entry in enumerate(value)
    ]


def _each(kind: str, values: list[Any], where: str) -> list[MediaSource]:
    given = [value for value in values if value is not None]
    return [source_of(kind, value, f"{where}[{i}]") for i, value in enumerate(given)]


def decoded(source: MediaSource, most: int) -> bytes:
    """Return the bytes of a data URL or of base64, at most ``most``. Raises RequestError."""
    text = source.text
    if text[:5].lower() == "data:":
        head, comma, text = text.partition(",")
        if not comma or not head.lower().endswith(";base64"):
            raise source.refused(
                f"{head[:SHOWN]!r} is not a supported data URL; give data:TYPE;base64,..."
            )
    if len(text) // 4 * 3 - 2 > most:
        raise too_large(source, len(text) // 4 * 3, most)
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        shown = f"{text[:SHOWN]!r}" if len(text) > SHOWN else repr(text)
        raise source.refused(f"{shown} is not base64, nor a URL ({error}).") from error
    if not data:
        raise source.refused(f"the {source.kind} is empty: 0 bytes.")
    if len(data) > most:
        raise too_large(source, len(data), most)
    return data


def read_file(source: MediaSource, directory: str, most: int) -> bytes:
    """Return the bytes of a file below ``directory``, with links resolved. Raises RequestError."""
    if not directory:
        raise source.refused(
            "files of the server are not read; send a data URL, or start the server with "
            "--allowed-local-media-path DIRECTORY.",
            "unsupported",
        )
    path = source.text
    if path[:5].lower() == "file:":
        parts = urlsplit(path)
        if parts.netloc not in ("", "localhost"):
            raise source.refused(f"{path[:SHOWN]!r} names a file of another host; give file:///...")
        path = unquote(parts.path)
    root = os.path.realpath(directory)
    try:
        # The path is verified before the file is opened, as opening a device may have an effect,
        # and again when it is open, as another file may have replaced it. Pipes are refused.
        real = _below(root, os.path.join(root, path))
        handle = os.open(real, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            _below(root, f"/proc/self/fd/{handle}")
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise FileNotFoundError
            if status.st_size > most:
                raise too_large(source, status.st_size, most)
            with os.fdopen(os.dup(handle), "rb") as file:
                return file.read(most)
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:
        if isinstance(error, RequestError):
            raise
        raise source.refused(
            f"{source.text[:SHOWN]!r} is no file in --allowed-local-media-path that can be read."
        ) from None


def _below(root: str, path: str) -> str:
    """Return the path with links resolved. Raises OSError or ValueError if it is not below
    ``root``."""
    real = os.path.realpath(path)
    if os.path.commonpath((root, real)) != root:
        raise FileNotFoundError
    return real


def too_large(source: MediaSource, size: int, most: int) -> RequestError:
    return source.refused(
        f"the {source.kind} has {size} bytes or more; at most {most} (--max-media-bytes)."
    )
