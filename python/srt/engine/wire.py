"""A client's end of the wire: frames to the engine, and the reading of its own by the event
loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import zmq
from sglang.srt.engine.socket import configure

AT_ONCE = 64  # frames read before other tasks of the loop get a turn


class Wire:
    """``take`` is called with each frame, by the running event loop.

    zmq's descriptor does not say that there is a frame: it gives notice, once, that something has
    changed, and a call of the socket meanwhile, to send, may use the notice up. So all frames
    are read at each notice, and it is looked for more after each send. ``socket``: one whose frames
    have one part; by default a PAIR.
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
        """Send a frame without waiting. Raises OSError where the socket does not take it."""
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.ZMQError as error:
            raise OSError(error.errno, str(error)) from error
        self._look()

    def close(self, linger: int = 0) -> None:
        """Close, and send for ``linger`` milliseconds what is in flight. A second call has no
        effect."""
        if self._socket.closed:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            self._loop.remove_reader(self._descriptor)
        self._socket.close(linger=linger)

    def _look(self) -> None:
        """Read in the next turn of the loop."""
        if not self._due:
            self._due = True
            self._loop.call_soon(self._read)

    def drain(self) -> None:
        """Take all frames that have come."""
        while self._some():
            pass

    def _read(self) -> None:
        self._due = False
        if self._some():
            self._look()

    def _some(self) -> bool:
        """Take frames. Return whether there may be more."""
        for _ in range(AT_ONCE):
            if self._socket.closed:
                return False
            try:
                frame = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return False
            self._take(frame)
        return True
