"""FrontLink: one connection of a front (a server) to an engine. It does not reconnect: nothing
tells which frames were lost on the way, so a session ends with its connection.

ZMTP's own heartbeats detect a stopped engine or a broken network. Threads of the library answer
them, so a long forward pass does not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import zmq
from sglang.srt.engine.client import EngineLost
from sglang.srt.engine.socket import configure
from sglang.srt.engine.wire import Wire
from sglang.srt.remote.curve_keys import FrontKeys
from zmq.utils.monitor import parse_monitor_message


class Unreachable(EngineLost):
    """There is no connection yet; a later attempt may succeed."""


class EngineRefused(EngineLost):
    """The engine refuses this front, or the front refuses the engine. Another attempt with the same
    settings would fail too."""


UNKNOWN_KEY = (
    "it does not know this front's key; add it to 'fronts' of the engine's key file, or give the "
    "front.key that was made with that"
)
OTHER_KEY = (
    "it has another key than 'engine' of this front's key file, or none; give the front.key that "
    "was made with the engine's"
)
NO_KEY = "it has keys and this front none, or it is no engine of sglang; give --curve-keys"
FAILURES = (
    zmq.Event.HANDSHAKE_FAILED_NO_DETAIL,
    zmq.Event.HANDSHAKE_FAILED_PROTOCOL,
    zmq.Event.HANDSHAKE_FAILED_AUTH,
)


class FrontLink:
    """A socket and the state of its connection.

    Args:
        address: tcp://HOST:PORT.
        heartbeat: seconds without a message of the engine after which the connection is lost.
        take: called with each received frame.
        over: called once with the reason when the connection is lost.
    """

    def __init__(
        self, address: str, keys: FrontKeys | None, heartbeat: float,
        take: Callable[[bytes], None], over: Callable[[EngineLost], None],
    ) -> None:  # fmt: skip
        self._address, self._heartbeat, self._over = address, heartbeat, over
        socket = configure(zmq.Context.instance().socket(zmq.DEALER))
        milliseconds = round(heartbeat * 1000)
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        socket.setsockopt(zmq.HANDSHAKE_IVL, milliseconds)
        socket.setsockopt(zmq.HEARTBEAT_IVL, max(milliseconds // 3, 1))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, max(milliseconds * 2 // 3, 1))
        if keys is not None:
            keys.apply(socket)
        self._keyed = keys is not None
        self._socket, self._loop = socket, asyncio.get_running_loop()
        self._up: asyncio.Future[EngineLost | None] = self._loop.create_future()
        self._monitor = socket.get_monitor_socket()
        try:
            self._wire = Wire(address, take, socket)
        except zmq.ZMQError as error:
            self._close_monitor()
            socket.close(linger=0)
            raise EngineRefused(f"the engine at {address}: {error}") from error
        self._loop.add_reader(self._monitor.fileno(), self._observe)
        self._loop.call_soon(self._observe)

    async def connected(self, seconds: float) -> None:
        """Wait until the connection is established and authenticated. Raises EngineRefused if the
        keys do not fit, Unreachable after ``seconds``."""
        done, _ = await asyncio.wait([self._up], timeout=seconds)
        if not done:
            raise Unreachable(f"the engine at {self._address} did not answer in {seconds:g} s")
        error = self._up.result()
        if error is not None:
            raise error

    def send(self, frame: bytes) -> None:
        """Send a frame without waiting. Raises OSError if the socket refuses it."""
        self._wire.send(frame)

    def close(self, linger: int = 0) -> None:
        """Close the connection; frames that wait are still sent for ``linger`` milliseconds. A
        second call has no effect."""
        if not self._socket.closed:
            with contextlib.suppress(RuntimeError):  # the loop is closed already
                self._loop.remove_reader(self._monitor.fileno())
            self._close_monitor()
            self._wire.close(linger)

    def _close_monitor(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)

    def _observe(self) -> None:
        """Handle all new events of the socket's monitor."""
        while not self._socket.closed:
            try:
                found = parse_monitor_message(self._monitor.recv_multipart(zmq.NOBLOCK))
            except zmq.Again:
                return
            event = zmq.Event(found["event"])
            if event == zmq.Event.HANDSHAKE_SUCCEEDED:
                self._up.set_result(None)
            elif error := self._error_of(event):
                self._wire.drain()  # read the engine's last frames, which may have the reason
                if self._up.done():
                    self._over(error)
                else:
                    self._up.set_result(error)

    def _error_of(self, event: zmq.Event) -> EngineLost | None:
        at = f"the engine at {self._address}"
        if event in FAILURES:
            unknown = event == zmq.Event.HANDSHAKE_FAILED_AUTH
            reason = UNKNOWN_KEY if unknown else OTHER_KEY if self._keyed else NO_KEY
            return EngineRefused(f"{at} is refused: {reason}")
        if event == zmq.Event.DISCONNECTED and self._up.done():
            return EngineLost(
                f"the connection to {at} is lost: it ended, or was not heard of for "
                f"{self._heartbeat:g} s"
            )
        if event in (zmq.Event.DISCONNECTED, zmq.Event.CLOSED):
            return Unreachable(f"{at} cannot be reached: nothing listens there")
        return None
