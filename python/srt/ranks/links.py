"""Links: one-way sockets between the planner and its ranks.

A receiver binds an ``InLink`` and publishes its address; each sender connects an ``OutLink``. On
one machine, addresses are Unix sockets in a directory that only the user can read. Between
machines, addresses are TCP, and the network must be trusted.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

import zmq

MAX_FRAME = 1 << 30
# Separate from the engine's context, which is terminated while ranks are connected.
_CONTEXT: Any = zmq.Context()


def _configured(kind: int) -> Any:
    made = _CONTEXT.socket(kind)
    made.setsockopt(zmq.LINGER, 200)
    made.setsockopt(zmq.SNDHWM, 0)
    made.setsockopt(zmq.RCVHWM, 0)
    made.setsockopt(zmq.MAXMSGSIZE, MAX_FRAME)
    made.setsockopt(zmq.IPV6, 1)
    return made


class InLink:
    """Receives messages sent to ``address``. Raises OSError if the address is in use."""

    def __init__(self, address: str) -> None:
        self._socket = _configured(zmq.PULL)
        try:
            self._socket.bind(address)
        except zmq.ZMQError as error:
            self._socket.close()
            raise OSError(error.errno, os.strerror(error.errno or 0)) from error
        self.address = str(self._socket.getsockopt_string(zmq.LAST_ENDPOINT))

    @classmethod
    def of(cls, directory: Path | None, name: str, host: str = "") -> InLink:
        """Bind a socket ``name`` in a directory, or without one a free port of ``host``."""
        if directory is not None:
            return cls(f"ipc://{directory / name}")
        return cls(f"tcp://{bracketed(host)}:*")

    def take(self, seconds: float | None = None) -> list[bytes] | None:
        """Return the next message's parts; None without one in ``seconds`` (None: no limit)."""
        if not self._socket.poll(None if seconds is None else seconds * 1000):
            return None
        parts: list[bytes] = self._socket.recv_multipart()
        return parts

    def close(self) -> None:
        self._socket.close(linger=0)


class OutLink:
    """Sends messages to one address, without waiting for the receiver."""

    def __init__(self, address: str) -> None:
        self._socket = _configured(zmq.PUSH)
        self._socket.connect(address)

    def send(self, *parts: bytes | memoryview) -> None:
        """Send a message of one or more parts. The message is dropped if the receiver is gone."""
        with contextlib.suppress(zmq.Again):
            self._socket.send_multipart(parts, zmq.NOBLOCK, copy=len(parts) == 1)

    def close(self, linger: int = 200) -> None:
        self._socket.close(linger=linger)


def finish_sending() -> None:
    """Close all sockets of the process, after at most 0.2 s for messages not sent yet."""
    _CONTEXT.destroy(linger=200)


def bracketed(host: str) -> str:
    """Return a host in the form for an address with a port: IPv6 addresses in brackets."""
    return f"[{host}]" if ":" in host else host


def numeric(host: str, port: int) -> str:
    """Return the numeric IP address of ``host``. Raises OSError if the host is unknown."""
    return str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])


def reached_as(host: str, port: int) -> str:
    """Return this machine's IP address on the network through which it reaches ``host``. Raises
    OSError if ``host`` has no address."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    family, kind, protocol, _, address = found[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)  # sends nothing
        return str(probe.getsockname()[0])
