"""The HTTP client of RuntimeEndpoint: replies in any pieces, kept connections, what goes wrong."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
import sglang as sgl
from hypothesis import given
from hypothesis import strategies as st
from sglang.backend.cancel import Cancellation, aborted_by
from sglang.backend.native.connections import Connections, Dialogue, HttpLines, ServerOrigin
from sglang.backend.native.connections_async import AsyncConnections
from sglang.errors import BackendError, ConnectionFailed

SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nX-Name:  y \r\n\r\nhello"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"
CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"3;note=1\r\nhel\r\n2\r\nlo\r\n0\r\nTrailer: x\r\n\r\n"
)
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 5\r\n\r\nhello"
UNTIL_CLOSED = b"HTTP/1.0 500 Oops\r\n\r\nhello"
TOO_MUCH = SIZED + b"HTTP/1.1 200 OK\r\n"
REPLIES = {SIZED: True, CHUNKED: True, EMPTY: True, CLOSING: False, UNTIL_CLOSED: False}
ORIGIN = ServerOrigin("http://host", {}, True)


@given(st.sampled_from(list(REPLIES)), st.lists(st.integers(0, 120), max_size=8))
def test_a_reply_in_any_pieces(whole: bytes, cuts: list[int]) -> None:
    dialogue, body, ends = Dialogue(ORIGIN, "GET", "/"), b"", [0, *sorted(cuts), len(whole)]
    for start, end in pairwise(ends):
        if piece := whole[start:end]:
            assert not dialogue.complete
            body += dialogue.feed(piece)
    if whole == UNTIL_CLOSED:
        body += dialogue.feed(b"")
    assert dialogue.complete
    assert body == (b"" if whole == EMPTY else b"hello")
    assert dialogue.status == int(whole.rpartition(b"HTTP/1.")[2][2:5])
    assert dialogue.keeps is REPLIES[whole]


def test_a_connection_with_more_than_the_reply_is_not_kept() -> None:
    dialogue = Dialogue(ORIGIN, "GET", "/")
    assert dialogue.feed(TOO_MUCH) == b"hello"
    assert dialogue.complete
    assert not dialogue.keeps


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (SIZED[:-1], "before the end of the answer"),
        (CHUNKED[:-4], "before the end of the answer"),
        (b"HTTP/1.1 200", "before the end of the answer"),
        (b"", "before the end of the answer"),
        (b"SSH-2.0-OpenSSH_9\r\n\r\n", "no HTTP/1.1: illegal status line"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "no HTTP/1.1: bad Content-Length"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "no HTTP/1.1: Receive buffer too long"),
    ],
)
def test_what_is_cut_or_no_http_is_told(data: bytes, complaint: str) -> None:
    dialogue = Dialogue(ORIGIN, "GET", "/")
    with pytest.raises(ConnectionError, match=complaint):
        list(map(dialogue.feed, (data, b"")))
    assert not dialogue.keeps


@given(st.text("aé\n\r", max_size=12), st.integers(0, 24))
def test_lines_in_any_pieces(text: str, cut: int) -> None:
    lines, data = HttpLines(), text.encode()
    found = [line for piece in (data[:cut], data[cut:]) for line in lines.of(piece)]
    assert found == [line.rstrip("\r") for line in text.split("\n")[:-1]]


def test_a_line_of_many_pieces_is_copied_once() -> None:
    class Piece(bytes):
        copied = 0

        def __radd__(self, other: bytes) -> bytes:
            Piece.copied += len(other)
            return bytes(other) + bytes(self)

    lines, count = HttpLines(), 200
    assert [line for _ in range(count) for line in lines.of(Piece(b"0123456789"))] == []
    assert list(lines.of(b"\n")) == ["0123456789" * count]
    assert Piece.copied <= 20 * count


class Scripted:
    """A server whose n-th connection gives these replies, one a request, and is closed."""

    def __init__(self, *connections: Sequence[bytes]) -> None:
        self.requests: list[bytes] = []
        self.closed = threading.Semaphore(0)  # released for each connection that has been closed
        self._connections = connections
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        for replies in self._connections:
            connection, _ = self._listener.accept()
            with connection:
                for reply in replies:
                    self.requests.append(connection.recv(1 << 16))
                    connection.sendall(reply)
            self.closed.release()

    def __enter__(self) -> Scripted:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join(timeout=60)
        self._listener.close()
        assert not self._thread.is_alive()


class Twins:
    """The plain and the asynchronous connections behind one function."""

    def __init__(self, kind: str, url: str) -> None:
        origin = ServerOrigin(url, {"Authorization": "Bearer k"}, True)
        self._plain = Connections(origin) if kind == "plain" else None
        self._async = AsyncConnections(origin)
        self._loop = asyncio.new_event_loop()

    def ask(self, body: object = None) -> tuple[int, bytes]:
        return (
            self._loop.run_until_complete(self._aask(body)) if not self._plain else self._ask(body)
        )

    def _ask(self, body: object) -> tuple[int, bytes]:
        assert self._plain is not None
        with self._plain.exchange("POST", "/x", body) as exchange:
            return exchange.status, exchange.read()

    async def _aask(self, body: object) -> tuple[int, bytes]:
        async with self._async.exchange("POST", "/x", body) as exchange:
            return exchange.status, await exchange.read()

    def close(self) -> None:
        self._async.close()
        if self._plain:
            self._plain.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()


@pytest.fixture(params=["plain", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_connections_are_kept_and_replaced(kind: str) -> None:
    with Scripted([SIZED, CHUNKED, CLOSING], [SIZED], [UNTIL_CLOSED]) as server:
        client = Twins(kind, f"{server.url}/pre fix")
        assert [client.ask({"é": 1})[1] for _ in range(3)] == [b"hello"] * 3
        assert client.ask() == (200, b"hello")
        for _ in range(2):  # the second, too, though its reply promised to keep it
            assert server.closed.acquire(timeout=60)
        assert client.ask() == (500, b"hello")
        client.close()
    head, _, content = server.requests[0].partition(b"\r\n\r\n")
    assert json.loads(content) == {"é": 1}
    assert head.startswith(b"POST /pre%20fix/x HTTP/1.1\r\n")
    assert f"\r\nHost: {server.url[7:]}\r\n".encode() in head
    assert b"\r\nAuthorization: Bearer k\r\n" in head
    assert f"\r\nContent-Length: {len(content)}".encode() in head


def test_a_connection_that_was_idle_for_long_is_not_used(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may be closing it, and the request would be lost."""
    for module in ("connections", "connections_async"):
        monkeypatch.setattr(f"sglang.backend.native.{module}.KEPT_SECONDS", 0.0)
    with Scripted([SIZED, SIZED], [SIZED]) as server:
        client = Twins(kind, server.url)
        assert [client.ask({})[1] for _ in range(2)] == [b"hello"] * 2
        client.close()
    assert server.requests[1] == b""


def test_a_lost_connection_is_told_and_not_used_again(kind: str) -> None:
    with Scripted([SIZED[:-2]], [b""], [SIZED]) as server:
        client, url = Twins(kind, server.url), server.url
        for _ in range(2):
            with pytest.raises(
                ConnectionFailed, match=f"connection to {url} was lost: it was closed"
            ):
                client.ask({})
        assert client.ask({}) == (200, b"hello")
        client.close()
    client = Twins(kind, url)
    with pytest.raises(ConnectionFailed, match=r"no runtime answers at .*launch_server"):
        client.ask({})
    client.close()


@pytest.mark.parametrize(
    ("url", "key", "complaint"),
    [
        ("ftp://host", "k", "'ftp://host' is no URL of a runtime; give http://HOST:PORT"),
        ("http://", "k", "give http://HOST:PORT"),
        ("http://user:secret@host", "k", "no password; give api_key"),
        ("http://host", "k\r\nX: y", "the API key holds a character"),
        ("http://host", "k ", "the API key holds a character"),
        ("http://hé", "k", "give http://HOST:PORT"),
        ("http://host", "é", "the API key holds a character"),
    ],
)
def test_urls_and_keys_that_cannot_be_used(url: str, key: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint) as raised:
        sgl.RuntimeEndpoint(url, api_key=key)
    assert "secret" not in str(raised.value)


def test_an_event_loop_that_ends_closes_its_connections() -> None:
    reply = b'HTTP/1.1 200 OK\r\nContent-Length: 32\r\n\r\n{"text": "yes", "meta_info": {}}'
    with Scripted([reply, reply], [reply], [reply]) as server:
        endpoint = sgl.RuntimeEndpoint(server.url, chat_template_name="chatml")
        endpoint.get_server_info()

        async def asked() -> AsyncConnections:
            assert await endpoint.acall({"text": "?"}) == {"text": "yes", "meta_info": {}}
            ((connections, _),) = endpoint._loops.values()
            assert len(connections._idle) == 1
            return connections

        for _ in range(2):
            assert not asyncio.run(asked())._idle
            assert endpoint._loops == {}
        endpoint.shutdown()


def test_a_task_that_is_cancelled_sends_no_more() -> None:
    """A cancelled connection does not wait either until the server has read the rest."""
    received: list[Any] = []
    size, begun, cancelled = 1 << 25, threading.Event(), threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError):
            received.append(len(connection.recv(1)))
            begun.set()
            assert cancelled.wait(60)
            while piece := connection.recv(1 << 20):
                received.append(len(piece))

    async def ask() -> None:
        exchange = AsyncConnections(ServerOrigin(url, {}, True)).exchange("POST", "/", "x" * size)
        task = asyncio.ensure_future(exchange.__aenter__())
        assert await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled.set()
        await asyncio.to_thread(server.join, 10)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        server = threading.Thread(target=serve)
        server.start()
        asyncio.run(ask())
    assert not server.is_alive()
    assert sum(received) < size


def test_a_cancelled_run_asks_for_nothing() -> None:
    run = Cancellation()
    run.cancel()
    with Scripted([SIZED]) as server, run.active():
        client = Twins("plain", server.url)
        with pytest.raises(BackendError, match="the run has been cancelled"):
            client.ask({})
        client.close()
    assert server.requests == [b""]


def test_no_abort_comes_after_its_call() -> None:
    """A late abort would cut a connection that belongs to another call by then."""
    left: list[Any] = []
    run, inside, leave = Cancellation(), threading.Event(), threading.Event()

    def abort() -> None:
        leave.set()
        caller.join(0.1)  # the caller waits for this abort, and so cannot end
        left.append(not caller.is_alive())

    def call() -> None:
        with run.active(), aborted_by(abort):
            inside.set()
            leave.wait(60)

    caller = threading.Thread(target=call)
    caller.start()
    assert inside.wait(60)
    run.cancel()
    caller.join(60)
    assert not caller.is_alive()
    assert left == [False]
