"""The client's end of the connection: a socket that sends frames to the engine, and whose frames
are read by the asyncio event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import zmq
from sglang.srt.engine.socket import configure

AT_ONCE = 64  # frames read before other tasks of the loop get a turn


class Wire:
    """A socket that calls ``take`` with each received frame, on the running event loop.

    The file descriptor of a ZMQ socket is edge-triggered: it becomes readable once when the state
    of the socket changes, and a send meanwhile may consume that event. So each event reads all
    frames, and each send is followed by a read. ``socket``: a ZMQ socket whose frames have one
    part; default: a PAIR.
    """

    def __init__(self, address: str, take: Callable[[bytes], None], socket: Any = None) -> None:
        self._take, self._loop = take, asyncio.get_running_loop()
        self._socket = socket or configure(zmq.Context.instance().socket(zmq.PAIR))
        self._socket.connect(address)
        self._descriptor = self._socket.fileno()
        self._loop.add_reader(self._descriptor, self._read)
        self._due = False
        self._look()

    def send(self, frame: bytes) -> None:
        """Send a frame without waiting. Raises OSError if the socket refuses the frame."""
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise OSError(error.errno, str(error)) from error
        self._look()

    def close(self, linger: int = 0) -> None:
        """Close the socket; frames not sent yet are sent for up to ``linger`` milliseconds. A
        second call has no effect."""
        if self._socket.closed:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.remove_reader(self._descriptor)
        self._socket.close(linger=linger)

    def _look(self) -> None:
        """Schedule a read for the next turn of the event loop."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._read)

    def drain(self) -> None:
        """Take all frames that have arrived."""
        while self._some():
            pass

    def _read(self) -> None:
        self._due = False
        if self._some():
            self._look()

    def _some(self) -> bool:
        """Take at most ``AT_ONCE`` frames. Return whether there may be more."""
        for _ in range(AT_ONCE):
            if self._socket.closed:
                return False
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self._take(frame)
        return True
