"""HostPipe: frames between the server and the host of guests, over a pair of sockets.

Threads of the host write as they have something to say, and its main thread reads. The server's
event loop does both without waiting. A frame is its length, in four bytes, and its bytes.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress

LENGTH = struct.Struct("<I")
READ_BYTES = 1 << 18  # at most, of one read


class FrameReader:
    """Frames out of the bytes of a stream."""

    def __init__(self) -> None:
        self._data = bytearray()

    def add(self, data: bytes) -> list[bytes]:
        """The frames that these bytes complete, in order."""
        self._data += data
        found, start = [], 0
        while len(self._data) - start >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._data, start)
            end = start + LENGTH.size + length
            if len(self._data) < end:
                break
            found.append(bytes(memoryview(self._data)[start + LENGTH.size : end]))
            start = end
        if start:
            del self._data[:start]
        return found


class ThreadPipe:
    """The host's end. One thread reads, any thread sends; both may wait."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._reader = end, FrameReader()
        self._lock = threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, frame: bytes) -> None:
        """Send a frame. Raises OSError where the server is gone."""
        data = LENGTH.pack(len(frame)) + frame
        with self._lock:
            self._socket.sendall(data)

    def read(self) -> list[bytes] | None:
        """Frames that have come, after a wait for some bytes; None once the server is gone."""
        data = self._socket.recv(READ_BYTES)
        return self._reader.add(data) if data else None


class LoopPipe:
    """The server's end. ``take`` is called with each frame, by the running event loop."""

    def __init__(self, end: socket.socket, take: Callable[[bytes], None]) -> None:
        end.setblocking(False)
        self._socket, self._take, self._reader = end, take, FrameReader()
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._loop.add_reader(end, self._some)

    def send(self, frame: bytes) -> None:
        """Send a frame without waiting. Raises OSError where the host is gone."""
        waiting = bool(self._unsent)
        self._unsent += LENGTH.pack(len(frame)) + frame
        if not waiting:
            self._write()
            if self._unsent:
                self._loop.add_writer(self._socket, self._write_on)

    def drain(self) -> None:
        """Take all frames that have come."""
        while self._some():
            pass

    def close(self) -> None:
        """Close. A second call has no effect."""
        if self._socket.fileno() < 0:
            return
        with suppress(RuntimeError):  # the loop is closed already
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
        self._socket.close()

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()
            raise
        del self._unsent[:sent]

    def _write_on(self) -> None:
        with suppress(OSError):  # the host is gone; its death is noticed elsewhere
            self._write()
        if not self._unsent:
            self._loop.remove_writer(self._socket)

    def _some(self) -> bool:
        """Take frames. Return whether there may be more."""
        try:
            data = self._socket.recv(READ_BYTES) if self._socket.fileno() >= 0 else b""
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            if self._socket.fileno() >= 0:
                self._loop.remove_reader(self._socket)
            return False
        for frame in self._reader.add(data):
            self._take(frame)
        return True
