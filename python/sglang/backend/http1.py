"""Http1: an HTTP/1.1 reply, parsed from bytes as they come (RFC 9112). It knows no sockets."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator

STATUS_LINE = re.compile(r"HTTP/1\.([01]) (\d{3})( |$)")
LONGEST_LINE = 1 << 16


class Reply:
    """One reply.

    Attributes:
        status: 0 until the head is complete.
        headers: by name, in lower case.
        complete: the whole body has come.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.complete = False
        self._data, self._body, self._ended = bytearray(), bytearray(), False
        self._parser = self._parse()

    @property
    def keeps(self) -> bool:
        """Whether the connection can be used again."""
        closes = "close" in self.headers.get("connection", "").lower()
        return self.complete and not (self._data or self._ended or closes)

    def feed(self, data: bytes) -> bytes:
        """What ``data`` brings of the body; b"" for ``data`` is the end of the connection.

        Raises ConnectionError where it ends early, or is no HTTP/1.1.
        """
        self._data += data
        self._ended = not data
        try:
            next(self._parser, None)
        except ValueError as error:
            raise ConnectionError(f"the answer is no HTTP/1.1: {error}") from error
        if self._ended and not self.complete:
            raise ConnectionError("it was closed before the end of the answer")
        body = bytes(self._body)
        self._body.clear()
        return body

    def _parse(self) -> Generator[None, None, None]:
        """Yields where it needs more."""
        status = 100
        while status < 200:  # of interim replies nothing is kept
            first = yield from self._line()
            found = STATUS_LINE.match(first)
            if found is None:
                raise ValueError(f"it begins with {first!r:.60}")
            status = int(found[2])
            self.headers = {"connection": "close"} if found[1] == "0" else {}
            while line := (yield from self._line()):
                name, _, value = line.partition(":")
                self.headers[name.lower()] = value.strip()
        self.status = status
        yield from self._read_body()
        self.complete = True

    def _read_body(self) -> Generator[None, None, None]:
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            while size := int((yield from self._line()).partition(";")[0], 16):
                yield from self._take(size)
                yield from self._line()
            while (yield from self._line()):
                pass  # trailers
        elif "content-length" in self.headers:
            yield from self._take(int(self.headers["content-length"]))
        elif self.status not in (204, 304):
            while not self._ended:
                yield from self._take(len(self._data))
                yield

    def _line(self) -> Generator[None, None, str]:
        while (end := self._data.find(b"\r\n")) < 0:
            if len(self._data) > LONGEST_LINE:
                raise ValueError(f"a line is longer than {LONGEST_LINE} bytes")
            yield
        line = self._data[:end].decode("latin-1")
        del self._data[: end + 2]
        return line

    def _take(self, size: int) -> Generator[None, None, None]:
        if size < 0:
            raise ValueError(f"a length is {size}")
        while size:
            if not self._data:
                yield
            part = self._data[:size]
            del self._data[: len(part)]
            self._body += part
            size -= len(part)


class Lines:
    """Splits pieces of a UTF-8 text into its lines, without their ends."""

    def __init__(self) -> None:
        self._rest = b""

    def of(self, piece: bytes) -> Iterator[str]:
        """The lines that ``piece`` completes."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r").decode("utf-8", "replace")
