"""The engine's end of the connection: a ZMQ PAIR socket over ipc. A frame is a list of messages."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq
from sglang.srt.core.messages import Event, Verb, decode_verbs, encode
from sglang.srt.engine.engine_stats import EngineStats

log = logging.getLogger("sglang.srt.engine")
EXIT = b""  # an empty frame requests the engine's exit
MAX_FRAME = 1 << 30
MAX_FRAMES = 4096  # most frames that a step takes from the socket


def configure(socket: Any) -> Any:
    """Set short lingering at close and no high-water mark (readers bound streams). Return it."""
    socket.setsockopt(zmq.LINGER, 200)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
    return socket


class SocketChannel:
    """The engine's ``Channel`` over a socket. No send waits, since the parent may have ended."""

    def __init__(self, address: str) -> None:
        self._socket = configure(zmq.Context.instance().socket(zmq.PAIR))
        self._socket.bind(address)
        self._frames: deque[zmq.Frame] = deque()  # received, not decoded
        self.stats = EngineStats()  # replaced by ``EngineCore.stats`` when the engine is made

    def connected(self) -> None:
        """Wait until the parent has connected."""
        self._socket.poll(flags=zmq.POLLOUT)

    def receive(self, seconds: float, limit: int) -> list[Verb] | None:
        if seconds and not self._frames:
            self._socket.poll(seconds * 1000)
        if self._exits():
            return None
        out: list[Verb] = []
        while self._frames and limit > 0:
            frame = self._frames.popleft().bytes
            limit -= len(frame)
            try:
                out.extend(decode_verbs(frame))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                self.stats.bad_frames += 1
                log.error("dropped a malformed frame of %d bytes: %s", len(frame), error)
        return out

    def _exits(self) -> bool:
        """Take the frames that have arrived, undecoded. Return whether one requests an exit."""
        for _ in range(MAX_FRAMES):
            try:
                frame = self._socket.recv(zmq.NOBLOCK, copy=False)
            except zmq.Again:
                return False
            if len(frame) == len(EXIT):
                return True
            self._frames.append(frame)
        return False

    def emit(self, events: Sequence[Event]) -> None:
        try:
            self._socket.send(encode(list(events)), zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise OSError(error.errno, str(error)) from error

    def close(self) -> None:
        """Wait until emitted frames are sent, for the linger time at most; close the socket."""
        self._socket.close()
        zmq.Context.instance().term()
