"""FrontsChannel: the socket of an engine that serves several fronts (servers): a ROUTER over TCP,
with CURVE if there are keys.

ZMTP's heartbeats, which threads of the library send and answer, detect fronts that were stopped,
killed or disconnected. The next frame to such a front fails, which ends its session. The engine's
loop sends a frame to each front every ``BEAT_SECONDS``. All times are on the monotonic clock.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Sequence
from typing import Any

import zmq
from sglang.srt.core.messages import Event, Verb
from sglang.srt.engine.socket import MAX_FRAMES, configure
from sglang.srt.remote.curve_keys import EngineKeys
from sglang.srt.remote.fronts import Fronts
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import parse_monitor_message

log = logging.getLogger("sglang.srt.remote")
BEAT_SECONDS = 1.0
LOG_SECONDS = 1.0  # least seconds between two log lines about refused connections
STRANGERS = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
    zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
    zmq.EVENT_HANDSHAKE_FAILED_AUTH,
)


class FrontsChannel:
    """The engine's end of all connections; a ``Channel`` of ``engine/loop`` after ``open``.

    Args:
        address: tcp://HOST:PORT to listen on; port "*" or 0: a free port.
        heartbeat: seconds without a message of a front after which it counts as gone.

    Attributes:
        address: the address with the actual port.
        stopping: the reason why the engine must end, set by a signal; "": it runs.

    Raises OSError if the address is in use or does not belong to this machine.
    """

    def __init__(self, address: str, keys: EngineKeys | None, heartbeat: float) -> None:
        self._context: Any = zmq.Context()
        self._socket = configure(self._context.socket(zmq.ROUTER))
        milliseconds = round(heartbeat * 1000)
        for option, value in (
            (zmq.IPV6, int("[" in address)),
            (zmq.ROUTER_MANDATORY, 1),
            (zmq.HANDSHAKE_IVL, milliseconds),
            (zmq.HEARTBEAT_IVL, max(milliseconds // 3, 1)),
            (zmq.HEARTBEAT_TIMEOUT, max(milliseconds * 2 // 3, 1)),
        ):
            self._socket.setsockopt(option, value)
        self._guard: ThreadAuthenticator | None = None
        self._monitor: Any = None
        if keys is not None:
            self._guard = ThreadAuthenticator(self._context)
            self._guard.start()
            self._guard.configure_curve_callback("*", credentials_provider=_Admitted(keys))
            keys.apply(self._socket)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise OSError(
                error.errno,
                f"cannot listen on {address}: {os.strerror(error.errno or 0)}; choose another with "
                "--listen",
            ) from error
        self.address = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._monitor = self._socket.get_monitor_socket()
        self.stopping = ""
        self._fronts: Fronts
        self._beaten = self._logged = time.monotonic()

    def open(self, fronts: Fronts) -> None:
        """Answer fronts from now on."""
        self._fronts = fronts

    def receive(self, seconds: float, limit: int) -> list[Verb] | None:
        """Receive verbs (see ``Channel``). ``limit`` of 0 means none; any other value is ignored,
        because ``Fronts`` limits the verbs of a step itself."""
        if seconds and not self._fronts.waiting:
            self._socket.poll(seconds * 1000)
        if self.stopping:
            self.end_all(self.stopping)
            return None
        self._read()
        self._beat()
        found = self._fronts.verbs() if limit > 0 else []
        self._flush()
        return found

    def emit(self, events: Sequence[Event]) -> None:
        self._fronts.events(events)
        self._flush()

    def end_all(self, reason: str) -> None:
        """End the sessions of all fronts with a reason."""
        self._fronts.end_all(reason)
        self._flush()

    def close(self) -> None:
        """Close the socket. Blocks for at most the linger time until all frames are sent."""
        if self._guard is not None:
            self._guard.stop()
        if self._monitor is not None:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
        self._socket.close()
        self._context.term()

    def _read(self) -> None:
        """Handle the frames that have arrived, at most MAX_FRAMES."""
        now = time.monotonic()
        for _ in range(MAX_FRAMES):
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(parts) == 2:
                self._fronts.take(parts[0], parts[1], now)
            else:
                self._fronts.counts.dropped_frames += 1

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beaten >= BEAT_SECONDS:
            self._beaten = now
            self._fronts.beat()
            self._count_strangers(now)

    def _flush(self) -> None:
        """Send all frames of the outbox. No send waits for a receiver."""
        outbox = self._fronts.outbox
        while outbox:
            sending, self._fronts.outbox = outbox, []
            for identity, frame in sending:
                try:
                    self._socket.send_multipart((identity, frame), zmq.NOBLOCK)
                except zmq.ZMQError:
                    self._fronts.gone(identity)
            outbox = self._fronts.outbox

    def _count_strangers(self, now: float) -> None:
        """Count the connections that were refused before a session began."""
        counts, reason = self._fronts.counts, ""
        while self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())
            if event["event"] in STRANGERS:
                counts.refused_strangers += 1
                reason = str(zmq.Event(event["event"]).name)
        if reason and now - self._logged >= LOG_SECONDS:
            self._logged = now
            log.error(
                "%d connections were refused so far, the last for %s: another key, no key, or no "
                "front of sglang", counts.refused_strangers, reason,
            )  # fmt: skip


class _Admitted:
    """Admits the fronts whose keys the engine knows (ZAP, ZeroMQ RFC 27)."""

    def __init__(self, keys: EngineKeys) -> None:
        self._keys = frozenset(key.encode() for key in keys.fronts)

    def callback(self, domain: str, key: bytes) -> bool:
        """Whether a client with this public key, in Z85, may connect."""
        return key in self._keys


def new_boot() -> int:
    """Return a random number of 40 bits that identifies one run of an engine."""
    return secrets.randbits(40)
