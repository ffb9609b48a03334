"""Server-sent events and chunked bodies, decoded as their bytes arrive."""

from __future__ import annotations


class EventParser:
    """Bytes in, ``data`` of whole events out (WHATWG HTML, section 9.2).

    Bytes are cut anywhere, inside a character too: an event is decoded only when it is complete.
    Other fields than ``data`` and comments are skipped; lines end with LF or CRLF.
    """

    def __init__(self) -> None:
        self._tail = b""
        self._data: list[bytes] = []

    def push(self, chunk: bytes) -> list[bytes]:
        lines = (self._tail + chunk).split(b"\n")
        self._tail = lines.pop()
        events: list[bytes] = []
        for line in lines:
            line = line.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif not line and self._data:
                events.append(b"\n".join(self._data))
                self._data.clear()
        return events


class ChunkedDecoder:
    """The payload of ``Transfer-Encoding: chunked`` (RFC 9112, section 7.1); trailers skipped."""

    def __init__(self) -> None:
        self.done = False
        self._buffer = b""
        self._left = 0  # payload bytes of the current chunk still to come
        self._trailer = False

    def push(self, data: bytes) -> bytes:
        """The payload in ``data``. Raises ValueError where a chunk's size cannot be read."""
        buffer, out = self._buffer + data, []
        while not self.done:
            if self._left:
                piece = buffer[: self._left]
                out.append(piece)
                buffer = buffer[len(piece) :]
                self._left -= len(piece)
                if self._left:
                    break
            line, found, rest = buffer.partition(b"\r\n")
            if not found:
                break
            buffer = rest
            if self._trailer:
                self.done = not line
            elif line:  # an empty line is the end of the chunk before
                self._left = int(line.split(b";")[0], 16)
                self._trailer = self._left == 0
        self._buffer = buffer
        return b"".join(out)
