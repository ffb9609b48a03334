"""Multipart bodies: one file, written to disk as it arrives, and a few short fields."""

from __future__ import annotations

from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.batches.file_store import Upload
from sglang.srt.runtime.offload import in_thread
from sglang.srt.web.exchange.error_replies import ServerError
from starlette.requests import Request

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

MAX_FIELD = 4096  # bytes of a field besides the file
MAX_FIELDS = 32  # parts of a form
REST = 1 << 18  # bytes of a form besides the file
BUFFER = 1 << 20  # bytes of the file that are written at once


class UploadForm:
    """The fields of a form. ``filename``: name of the form's file; None without a file."""

    def __init__(self) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None


async def read_form(request: Request, upload: Upload) -> UploadForm:
    """Read a request's form, and write its part ``file`` to ``upload``. Raises RequestError, and
    ServerError (415) for another kind of body."""
    kind, options = parse_options_header(request.headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        shown = kind.decode("latin-1") or "missing"
        raise ServerError(
            "unsupported_media_type",
            f"Content-Type is {shown:.80}; send multipart/form-data with a boundary.",
        )
    reader, size = _FormReader(), 0
    try:
        parser = MultipartParser(options[b"boundary"], reader.callbacks())
        async for part in request.stream():
            size += len(part)
            if size > upload.most + REST:
                raise RequestError(
                    f"The form has more than {upload.most} bytes (--batch-max-file-bytes) and "
                    f"{REST} for the fields; send less.",
                    "file",
                )
            parser.write(part)
            if len(reader.file) >= BUFFER:
                await in_thread(upload.write, reader.taken())
        parser.finalize()
    except FormParserError as error:
        raise RequestError(f"The body is no multipart form: {error}.") from error
    if not reader.ended:
        raise RequestError("The body ends in the middle of the form; send it again.")
    await in_thread(upload.write, reader.taken())
    return reader.form


class _FormReader:
    """Receiver of the parser's callbacks. ``file``: bytes of the file that are not written yet."""

    def __init__(self) -> None:
        self.form, self.file, self.ended = UploadForm(), bytearray(), False
        self._headers: dict[bytes, bytes] = {}
        self._name, self._value = bytearray(), bytearray()
        self._field, self._text = "", bytearray()
        self._in_file, self._parts = False, 0

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self.part_begin,
            "on_part_data": self.part_data,
            "on_part_end": self.part_end,
            "on_header_field": self.header_field,
            "on_header_value": self.header_value,
            "on_header_end": self.header_end,
            "on_headers_finished": self.headers_finished,
            "on_end": self.end,
        }

    def taken(self) -> bytes:
        found, self.file = bytes(self.file), bytearray()
        return found

    def part_begin(self) -> None:
        self._headers, self._text = {}, bytearray()
        self._field, self._in_file = "", False
        self._parts += 1
        if self._parts > MAX_FIELDS:
            raise RequestError(f"The form has more than {MAX_FIELDS} fields; send fewer.")

    def header_field(self, data: bytes, start: int, end: int) -> None:
        self._name += data[start:end]

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def header_end(self) -> None:
        self._headers[bytes(self._name).lower()] = bytes(self._value)
        self._name, self._value = bytearray(), bytearray()

    def headers_finished(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition"))
        self._field = options.get(b"name", b"").decode("utf-8", "replace")
        if self._field == "file":
            if self.form.filename is not None:
                raise RequestError("The form has two files; send one.", "file")
            name = options.get(b"filename", b"").decode("utf-8", "replace")
            self.form.filename, self._in_file = name, True

    def part_data(self, data: bytes, start: int, end: int) -> None:
        if self._in_file:
            self.file += data[start:end]
            return
        self._text += data[start:end]
        if len(self._text) > MAX_FIELD:
            raise RequestError(
                f"{self._field:.80} has more than {MAX_FIELD} bytes; only file may.", "file"
            )

    def part_end(self) -> None:
        if not self._in_file:
            self.form.fields[self._field] = self._text.decode("utf-8", "replace")

    def end(self) -> None:
        self.ended = True
