"""A launched server under attack, and what must be true of it after each one."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
from helpers.http_server import Client, is_error
from helpers.launched import Server
from helpers.waiting import until

MIB = 1 << 20
# Bytes that a process may grow by in all: heaps keep the memory of large bodies, and of answers
# for clients that stopped reading (row 34) before they were given up.
RSS = 128 * MIB
POOL = min(32, (os.cpu_count() or 1) + 4)  # threads that asyncio makes as it needs them
SECONDS = 60.0  # a busy machine is no failure
FAULTS = re.compile(r"Traceback|never retrieved|never awaited|internal error|exception", re.I)


def error_of(reply: httpx.Response, status: int) -> str:
    """The message of an error in the form of its route's API; asserts that form."""
    path = urlsplit(str(reply.url)).path
    if path.startswith("/api/"):
        return ollama_error(reply, status)
    if not path.startswith("/v1/messages"):
        return str(is_error(reply, status)["message"])
    assert reply.status_code == status, reply.text
    body = reply.json()
    assert set(body) == {"type", "error", "request_id"}
    assert body["type"] == "error"
    assert set(body["error"]) == {"type", "message", "details"}
    assert body["request_id"] == reply.headers["request-id"]
    assert body["error"]["message"]
    assert "Traceback" not in reply.text
    return str(body["error"]["message"])


def ollama_error(reply: httpx.Response, status: int) -> str:
    assert reply.status_code == status, reply.text
    assert set(reply.json()) == {"error"}
    message = reply.json()["error"]
    assert isinstance(message, str)
    assert message
    assert "Traceback" not in message
    return message


@dataclass(frozen=True)
class Footprint:
    """Resources that a process holds."""

    descriptors: int
    threads: int
    rss: int
    children: int

    @classmethod
    def of(cls, process: psutil.Process) -> Footprint:
        with process.oneshot():
            memory, children = process.memory_info().rss, process.children()
            return cls(process.num_fds(), process.num_threads(), memory, len(children))

    def within(self, before: Footprint, more: int = 0) -> bool:
        """Whether it has not grown, but for ``more`` bytes and what the module allows."""
        return (
            self.descriptors <= before.descriptors
            and self.threads <= before.threads + POOL
            and self.children <= before.children
            and self.rss <= before.rss + RSS + more
        )


class Bench:
    """A server, what it was like before, and a count of what it was sent.

    Attributes:
        http: a client, new for each row.
        sent: requests that have reached the application, whichever way.
    """

    def __init__(self, server: Server, headers: dict[str, str] | None = None) -> None:
        self.server, self._headers = server, headers or {}
        self.process = psutil.Process(server.process.pid)
        self.sent, self._lock = 0, threading.Lock()
        assert server.process.stderr is not None
        self._log = server.process.stderr.fileno()
        os.set_blocking(self._log, False)
        self.http = self.client()
        self.golden = self.http.golden()
        info = self.http.get("/get_model_info").json()
        self._kv = info["capacity"] * info["kv_bytes_per_token"]  # touched when it is first used

    def settle(self) -> None:
        """Take the server's present state as the one to come back to."""
        self._close()
        self.log()
        self._before = {
            "server": Footprint.of(self.process), "engine": Footprint.of(self.server.engine()),
        }  # fmt: skip

    @contextlib.contextmanager
    def row(self) -> Iterator[Bench]:
        """Run one attack inside: all that was true before must be true after it."""
        self.http = self.client()
        try:
            yield self
            self._verify()
        finally:
            self.http.close()

    # -- sending ----------------------------------------------------------------------------------

    def client(self, **headers: str) -> Client:
        """A client whose requests are counted."""
        return Client(
            base_url=self.server.url, timeout=200, verify=False,
            headers={**self._headers, **headers}, event_hooks={"request": [self._count]},
            limits=httpx.Limits(max_connections=200),
        )  # fmt: skip

    def _count(self, request: object) -> None:
        with self._lock:
            self.sent += 1

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.http.post(path, json=body)

    def connect(self, size: int | None = None) -> socket.socket:
        """A connection of bytes; ``size``: of its receive buffer."""
        at = urlsplit(self.server.url)
        assert at.hostname
        connection = socket.socket()
        if size is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        connection.settimeout(SECONDS)
        connection.connect((at.hostname, at.port))
        return connection

    def open(self, path: str, body: Any, size: int | None = None) -> socket.socket:
        """A connection on which a request was sent and nothing read."""
        data = json.dumps(body).encode()
        headers = {**self._headers, "Host": "localhost", "Content-Type": "application/json"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        head = f"POST {path} HTTP/1.1\r\n{lines}Content-Length: {len(data)}\r\n\r\n"
        connection = self.connect(size)
        connection.sendall(head.encode() + data)
        self._count(None)
        return connection

    # -- afterwards -------------------------------------------------------------------------------

    def _verify(self) -> None:
        """Assert that all is as it was, and that each request was answered once."""
        assert self.server.process.poll() is None
        assert self.http.golden() == self.golden
        stats = self.http.idle(SECONDS)
        assert stats["failed_audits"] == stats["failed_passes"] == stats["compiling"] == 0
        until(lambda: self.answers() == self.sent - 1)  # all but the one that asks
        info = self.http.get("/get_server_info").json()
        assert (info["open_requests"], info["pending"]) == (1, 0)
        self._close()
        self._verify_footprints()
        assert not FAULTS.search(log := self.log()), log

    def answers(self) -> int:
        """Answers that the server has counted; none of an open stream."""
        text = self.http.get("/metrics").text
        (streams,) = re.findall(r"^sglang:num_open_streams\S* (\S+)$", text, re.MULTILINE)
        if float(streams):
            return -1
        counts = re.findall(r"^sglang:http_requests_total\S* (\S+)$", text, re.MULTILINE)
        return int(sum(map(float, counts)))

    def log(self) -> str:
        """Log of the server since the last call."""
        found = b""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._log, 1 << 16):
                found += data
        return found.decode()

    def _close(self) -> None:
        self.http.close()
        port = urlsplit(self.server.url).port

        def closed() -> bool:
            connections = self.process.net_connections("tcp")
            return not [c for c in connections if c.laddr.port == port and c.raddr]

        until(closed)

    def _verify_footprints(self) -> None:
        now: dict[str, Footprint] = {}

        def back() -> bool:
            now.update(server=Footprint.of(self.process), engine=Footprint.of(self.server.engine()))
            return now["server"].within(self._before["server"]) and now["engine"].within(
                self._before["engine"], self._kv
            )

        with contextlib.suppress(AssertionError):
            until(back)
        assert back(), (now, self._before)
