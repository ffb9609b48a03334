"""Hostile connections: rows 2 to 4 and 34. Bytes on a socket, as no client library sends them."""

from __future__ import annotations

import concurrent.futures
import json
import logging
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from helpers.http_server import GOLDEN, Client, Served, serve_text
from helpers.waiting import until
from sglang.srt.config import Config
from sglang.srt.web.connection.protocol import PIPELINE, WRITE_BUFFER, Protocol
from sglang.srt.web.exchange import json_body as body
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HEAD_BYTES, BODY_BYTES = 16 << 10, 1 << 20
LIMITS: dict[str, Any] = {
    "max_header_bytes": HEAD_BYTES, "max_body_bytes": BODY_BYTES, "max_connections": 24,
}  # fmt: skip
TIMES = ("header_timeout", "body_timeout", "stream_write_timeout")
HOST = b"Host: localhost\r\n"
GET = b"GET /health HTTP/1.1\r\n" + HOST
POST = b"POST /generate HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
LONG = {"max_new_tokens": 900, "ignore_eos": True}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("tokenizer")
    config = Config.of(**LIMITS, **dict.fromkeys(TIMES, 60), keep_alive_timeout=60)
    with serve_text(directory, config, running=8, queued=16) as server:
        yield server


SOON = 0.5


@pytest.fixture
def soon(http: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections made from now on have little time; a busy machine would miss it elsewhere."""
    limits = Config.of(**LIMITS, **dict.fromkeys(TIMES, SOON)).edge
    original = Protocol.connection_made

    def connection_made(self: Protocol, transport: Any) -> None:
        self.limits = limits
        self.timeout_keep_alive = SOON  # type: ignore[assignment]
        original(self, transport)

    monkeypatch.setattr(Protocol, "connection_made", connection_made)


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read the rest of a request behind its answer for a moment only."""
    monkeypatch.setattr("sglang.srt.web.connection.protocol.LINGER", SOON)


@pytest.fixture
def http(served: Served) -> Iterator[Client]:
    """A client; after the test all is as before."""
    with Client(base_url=served.url, timeout=60) as client:
        before = client.golden()
        yield client
        served.worker.seconds = 0.0
        client.idle()
        assert client.golden() == before
    served.client.close()


# Attempts at a step that must be done within SOON: a server that is wrong fails every time, a busy
# machine does not.
TRIES = 5


class Raw:
    """A connection of bytes."""

    def __init__(self, served: Served, size: int | None = None) -> None:
        host, port = served.url.removeprefix("http://").split(":")
        self.socket = socket.socket()
        if size is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)
        self.socket.settimeout(60)
        self.socket.connect((host, int(port)))

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> bool:
        """Whether the other side still took it."""
        try:
            self.socket.sendall(data)
        except OSError:
            return False
        return True

    def rest(self, seconds: float = 60.0) -> bytes:
        """Everything until the other side closes."""
        self.socket.settimeout(seconds)
        found = b""
        try:
            while data := self.socket.recv(1 << 16):
                found += data
        except ConnectionResetError:
            pass
        return found

    def answered(self) -> bool:
        self.socket.settimeout(0.0)
        try:
            return bool(self.socket.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return False
        finally:
            self.socket.settimeout(60)


def status(answer: bytes) -> int:
    assert answer.startswith(b"HTTP/1.1 "), answer[:80]
    return int(answer[9:12])


def error_of(answer: bytes) -> dict[str, Any]:
    head, _, text = answer.partition(b"\r\n\r\n")
    assert b"x-request-id: " in head.lower()
    error = json.loads(text)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


# -- heads ----------------------------------------------------------------------------------------

ENDLESS: dict[str, tuple[bytes, bytes]] = {
    "value": (GET + b"X: ", b"x" * 4096),
    "name": (GET, b"x" * 4096),
    "url": (b"GET /", b"x" * 4096),
    "query": (b"GET /?", b"a=b&" * 1024),
    "headers": (GET, b"X-Some: thing\r\n" * 256),
    "lines": (b"", b"\r\n" * 2048),
    "trailers": (POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X: y\r\n" * 512),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_head_without_end_is_a_431(
    served: Served, http: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, more = ENDLESS[name]
    taken, original = [], Protocol.data_received

    def data_received(self: Protocol, data: bytes) -> None:
        taken.append(len(data))
        original(self, data)

    monkeypatch.setattr(Protocol, "data_received", data_received)
    with Raw(served) as raw:
        raw.send(first)
        sent = len(first)
        while raw.send(more) and not raw.answered() and sent < 10 << 20:
            sent += len(more)
            until(lambda: raw.answered() or sum(taken) >= sent)  # noqa: B023
        assert sent < 2 * HEAD_BYTES + (32 << 10)
        answer = raw.rest()
        if name != "trailers":  # the answer to the request itself may come first
            assert status(answer) == 431
            error = error_of(answer)
            assert error["code"] == "headers_too_large"
            assert str(HEAD_BYTES) in error["message"]


def test_ten_megabytes_at_once_are_a_431(served: Served, http: Client) -> None:
    with Raw(served) as raw:
        raw.send(GET + b"X: ")
        assert raw.send(b"x" * (10 << 20))  # not reset, which could cost it the answer
        assert status(raw.rest()) == 431


def test_a_head_below_the_limit_is_read(served: Served, http: Client) -> None:
    with Raw(served) as raw:
        raw.send(GET + b"X: " + b"x" * (HEAD_BYTES - 200) + b"\r\nConnection: close\r\n\r\n")
        assert status(raw.rest()) == 200
    data = json.dumps({**GOLDEN, "x": "y" * (4 * HEAD_BYTES)}).encode()
    with Raw(served) as raw:  # a head behind a body, in one piece
        raw.send(POST + b"Content-Length: %d\r\n\r\n" % len(data) + data + GET)
        raw.send(b"Connection: close\r\n\r\n")
        answer = raw.rest()
        assert answer.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.usefixtures("soon")
def test_a_slow_head_is_a_408_and_disturbs_nobody(served: Served, http: Client) -> None:
    start = time.monotonic()
    slow = [Raw(served) for _ in range(10)]
    try:
        for raw in slow:
            raw.send(b"G")
        data = iter(GET[1:] * 10)
        while not all(raw.answered() for raw in slow):
            piece = bytes([next(data)])
            for raw in slow:
                raw.send(piece)
            assert http.post("/generate", json=GOLDEN).status_code == 200
            time.sleep(0.02)
        assert time.monotonic() - start >= 0.9 * SOON
        for raw in slow:
            answer = raw.rest()
            assert status(answer) == 408
            assert "--header-timeout" in error_of(answer)["message"]
    finally:
        for raw in slow:
            raw.socket.close()


@pytest.mark.usefixtures("soon")
def test_a_connection_that_says_nothing_is_closed(served: Served) -> None:
    start = time.monotonic()
    with Raw(served) as silent, Raw(served) as blank:
        blank.send(b"\r\n")
        assert silent.rest() == blank.rest() == b""
        assert time.monotonic() - start >= 0.9 * SOON


@pytest.mark.usefixtures("soon")
def test_a_connection_that_waits_for_its_next_request_is_closed(
    served: Served,
) -> None:
    with Raw(served) as raw:
        start = time.monotonic()
        raw.send(GET + b"\r\n")
        assert raw.rest().count(b"HTTP/1.1") == 1
        assert time.monotonic() - start >= 0.9 * SOON


# -- bodies ---------------------------------------------------------------------------------------


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("drip", [b"", b" ", b"1\r\n \r\n"])
def test_a_body_that_stands_still_is_a_408(served: Served, chunked: bool, drip: bytes) -> None:
    kind = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 100000"
    with Raw(served) as raw:
        start = time.monotonic()
        raw.send(POST + kind + b"\r\n\r\n" + (b"1\r\n{\r\n" if chunked else b"{"))
        while not raw.answered():
            if drip and chunked == (len(drip) > 1):
                raw.send(drip)
            time.sleep(0.03)
        assert time.monotonic() - start >= 0.9 * SOON
        answer = raw.rest()
        assert status(answer) == 408
        assert "--body-timeout" in error_of(answer)["message"]
    until(lambda: served.state.open_requests == 0)


@pytest.mark.usefixtures("soon")
def test_endless_chunk_extensions_are_no_progress(served: Served) -> None:
    with Raw(served) as raw:
        raw.send(POST + b"Transfer-Encoding: chunked\r\n\r\n1;")
        while raw.send(b"x" * 1000) and not raw.answered():
            time.sleep(0.01)
        assert status(raw.rest()) in (400, 408)


@pytest.mark.usefixtures("soon")
def test_a_slow_body_that_moves_is_read(served: Served) -> None:
    data = json.dumps({**GOLDEN, "x": "y" * 16_000}).encode()

    def sent() -> bool:
        with Raw(served) as raw:
            raw.send(POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data))
            for at in range(0, len(data), 2000):
                raw.send(data[at : at + 2000])
                time.sleep(SOON / 6)
            return status(raw.rest()) == 200

    assert any(sent() for _ in range(TRIES))


@pytest.mark.usefixtures("brief")
def test_bodies_that_arrive_at_once_take_bounded_memory(
    served: Served, http: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "MOST_BODIES", 2)
    part = b" " * 900_000
    with Raw(served) as first, Raw(served) as second, Raw(served) as third:
        for raw in (first, second, third):
            raw.send(POST + b"Content-Length: 1000000\r\n\r\n")
        for raw in (first, second):
            raw.send(part)
        until(lambda: body._arriving.size == 1_800_000)
        third.send(part)
        answer = third.rest()
        assert status(answer) == 503
        assert error_of(answer)["code"] == "overloaded"
        assert http.post("/generate", json=GOLDEN).status_code == 200
    until(lambda: body._arriving.size == 0)
    large = {**GOLDEN, "x": "y" * 900_000}
    assert http.post("/generate", json=large).status_code == 200


@pytest.mark.slow
@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_past_the_limit_is_refused_before_it_is_there(
    served: Served, http: Client, chunked: bool
) -> None:
    size = 64 * BODY_BYTES
    kind = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % size
    piece = b"%x\r\n" % 8192 + b" " * 8192 + b"\r\n" if chunked else b" " * 8192
    with Raw(served) as raw:
        raw.send(POST + kind + b"\r\n\r\n")
        sent = 0
        while not raw.answered() and sent < size and raw.send(piece):
            sent += len(piece)
        assert sent < 16 * BODY_BYTES  # most of it in the sockets' buffers
        deadline = time.monotonic() + 60
        while raw.send(piece):  # a client that goes on is cut off
            assert time.monotonic() < deadline
        assert status(raw.rest()) == 413


def test_a_refused_body_read_to_its_end_costs_no_connection(served: Served, http: Client) -> None:
    with Raw(served) as raw:
        raw.send(b"POST /nowhere HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\n")
        until(raw.answered)
        raw.send(b" " * 9 + GET + b"Connection: close\r\n\r\n")
        answer = raw.rest()
        assert status(answer) == 404
        assert b"HTTP/1.1 200 OK" in answer


# -- ambiguous requests ---------------------------------------------------------------------------

TWO = b'{"text": "a"}'
AMBIGUOUS: dict[str, bytes] = {
    "two lengths": POST + b"Content-Length: 13\r\nContent-Length: 14\r\n\r\n" + TWO,
    "the same length twice": POST + b"Content-Length: 13\r\nContent-Length: 13\r\n\r\n" + TWO,
    "a list of lengths": POST + b"Content-Length: 13, 13\r\n\r\n" + TWO,
    "length and chunked": POST
    + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunked and length": POST
    + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "not chunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n" + TWO,
    "chunked not last": POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "signed length": POST + b"Content-Length: +13\r\n\r\n" + TWO,
    "hex length": POST + b"Content-Length: 0xd\r\n\r\n" + TWO,
    "negative length": POST + b"Content-Length: -1\r\n\r\n" + TWO,
    "huge length": POST + b"Content-Length: 99999999999999999999999\r\n\r\n" + TWO,
    "chunk size": POST + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "chunk end": POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n",
    "space before colon": GET + b"Content-Length : 0\r\n\r\n",
    "folded line": GET + b"X: a\r\n b\r\n\r\n",
    "bare return": GET + b"X: a\rY: b\r\n\r\n",
    "NUL": GET + b"X: a\x00b\r\n\r\n",
    "two hosts": GET + b"Host: other\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/0.9": b"GET /\r\n\r\n",
    "version": b"GET /health HTTP/3.7\r\n" + HOST + b"\r\n",
    "tunnel": b"CONNECT evil:80 HTTP/1.1\r\n" + HOST + b"\r\n",
    "path": b"GET /\xff HTTP/1.1\r\n" + HOST + b"\r\n",
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_what_is_no_plain_request_is_a_400(served: Served, http: Client, name: str) -> None:
    with Raw(served) as raw:
        raw.send(AMBIGUOUS[name])
        raw.send(GET + b"Connection: close\r\n\r\n")
        answer = raw.rest()
        assert status(answer) == 400
        error = json.loads(answer.partition(b"\r\n\r\n")[2].split(b"HTTP/1.1")[0])["error"]
        assert error["code"] == "malformed_request"
        if name not in ("two hosts", "no host"):  # both were read, and refused
            assert answer.count(b"HTTP/1.1 ") == 1


def test_trailers_are_no_headers(served: Served, http: Client) -> None:
    data = json.dumps(GOLDEN).encode()
    chunk = b"%x\r\n" % len(data) + data + b"\r\n0\r\n"
    with Raw(served) as raw:
        raw.send(POST + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunk
                 + b"Host: evil.example\r\nOrigin: http://evil.example\r\n\r\n")  # fmt: skip
        assert status(raw.rest()) == 200


def test_an_offer_of_http2_is_declined(served: Served, http: Client) -> None:
    data = json.dumps(GOLDEN).encode()
    with Raw(served) as raw:
        raw.send(POST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n"
                 b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\n"
                 b"Content-Length: %d\r\n\r\n" % len(data) + data)  # fmt: skip
        until(raw.answered)
        raw.send(GET + b"Connection: close\r\n\r\n")
        answer = raw.rest()
        assert answer.count(b"HTTP/1.1 200 OK") == 2


# -- several requests and connections -------------------------------------------------------------


def test_requests_in_a_row_are_answered_in_order(served: Served, http: Client) -> None:
    with Raw(served) as raw:
        for number in range(PIPELINE):
            raw.send(GET + b"X-Request-Id: %d\r\n\r\n" % number)
        raw.send(GET + b"X-Request-Id: last\r\nConnection: close\r\n\r\n")
        answer = raw.rest()
        ids = [line.split()[1] for line in answer.split(b"\r\n") if b"x-request-id" in line]
        assert ids == [b"%d" % number for number in range(PIPELINE)] + [b"last"]


def started(served: Served, http: Client, stream: bool) -> bytes:
    data = json.dumps({"text": "a", "sampling_params": LONG, "stream": stream}).encode()
    return POST + b"Content-Length: %d\r\n\r\n" % len(data) + data


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("behind", [b"", GET + b"\r\n", (GET + b"\r\n") * PIPELINE])
def test_a_client_that_leaves_is_seen_whatever_it_sent_behind(
    served: Served, http: Client, stream: bool, behind: bytes
) -> None:
    served.worker.seconds = 0.01
    before = http.stats()["aborted"]
    with Raw(served) as raw:
        raw.send(started(served, http, stream) + behind)
        until(lambda: http.stats()["running"] == 1)
        if behind == GET + b"\r\n":  # one more, when the server is not about to read
            raw.send(behind)
            time.sleep(0.05)
    until(lambda: http.stats()["running"] == 0)
    assert http.stats()["aborted"] == before + 1


BIG = POST + b"Content-Length: 900000\r\n\r\n" + b" " * 900_000


@pytest.mark.parametrize("count", [20, 2000])
@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.usefixtures("brief")
def test_of_many_requests_at_once_the_first_are_answered(
    served: Served, http: Client, count: int, apart: bool
) -> None:
    served.worker.seconds = 0.005
    sent = [GET + b"X-Request-Id: %d\r\n\r\n" % number for number in range(count)]
    with Raw(served) as raw:
        raw.send(started(served, http, False).replace(b"900", b"100"))
        for data in sent if apart else [b"".join(sent)]:
            if not raw.send(data):  # the server has closed
                break
        answer = raw.rest()
    statuses = [int(head[:3]) for head in answer.split(b"HTTP/1.1 ")[1:]]
    assert statuses == [200] * (PIPELINE + 1) + [429]
    ids = [line.split()[1] for line in answer.split(b"\r\n") if line.startswith(b"x-request-id")]
    assert ids[1:-1] == [b"%d" % number for number in range(PIPELINE)]
    last = answer[answer.rindex(b"HTTP/1.1 429") :]
    assert b"connection: close" in last
    assert error_of(last)["code"] == "rate_limit_exceeded"


def test_a_client_that_sent_too_many_requests_and_leaves_is_seen(
    served: Served, http: Client
) -> None:
    served.worker.seconds = 0.01
    before = http.stats()["aborted"]
    with Raw(served) as raw:
        raw.send(started(served, http, True) + (GET + b"\r\n") * 20)
        until(lambda: http.stats()["running"] == 1)
    until(lambda: http.stats()["running"] == 0)
    assert http.stats()["aborted"] == before + 1


def test_too_much_behind_a_request_ends_both(served: Served, http: Client) -> None:
    served.worker.seconds = 0.01
    with Raw(served) as raw:
        raw.send(started(served, http, False) + BIG)
        assert raw.rest() == b""
    until(lambda: http.stats()["running"] == 0)


def test_noise_behind_a_request_never_enters_its_stream(served: Served, http: Client) -> None:
    served.worker.seconds = 0.01
    with Raw(served) as raw:
        raw.send(started(served, http, True))
        until(raw.answered)
        raw.send(b"\x00 noise \r\n\r\n")
        answer = raw.rest()
        assert answer.count(b"HTTP/1.1") == 1
        assert b"malformed" not in answer
    until(lambda: http.stats()["running"] == 0)


def test_clients_that_reset_their_streams_leave_the_log_empty(
    served: Served, http: Client, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio takes what is written to a connection that is lost, and logs each write from the
    fifth on until the loop's next turn."""
    body = {"text": "a", "sampling_params": {**LONG, "n": 8}, "stream": True}
    with caplog.at_level(0):
        for _ in range(10):
            connections = [served.open(body) for _ in range(4)]
            for number, connection in enumerate(connections):
                connection.recv(1000 * number + 1)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()
        http.idle()
    loud = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert loud == []


def test_connections_beyond_the_limit_are_told_so(served: Served, http: Client) -> None:
    most = LIMITS["max_connections"]
    held = [Raw(served) for _ in range(most + 1)]
    try:
        answer = held[-1].rest()
        assert status(answer) == 503
        assert error_of(answer)["code"] == "too_many_connections"
        assert b"retry-after: " in answer.lower()
        assert http.get("/health").status_code == 200  # on its connection
    finally:
        for raw in held:
            raw.socket.close()
    until(lambda: _reachable(served))


def _reachable(served: Served) -> bool:
    try:
        return httpx.get(f"{served.url}/health", timeout=60).status_code == 200
    except httpx.TransportError:
        return False


# -- a client that does not read: row 34 ----------------------------------------------------------


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[Protocol]:
    """Connections made from now on."""
    made: list[Protocol] = []
    original = Protocol.connection_made

    def connection_made(self: Protocol, transport: Any) -> None:
        made.append(self)
        original(self, transport)

    monkeypatch.setattr(Protocol, "connection_made", connection_made)
    return made


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_a_client_that_stops_reading_its_stream_is_let_go(
    served: Served, http: Client, connections: list[Protocol]
) -> None:
    """Data of the stopped client waits in a bounded buffer, then its connection is aborted; other
    clients notice nothing."""
    served.worker.seconds = 0.002
    before = http.stats()
    sampling = {**LONG, "max_new_tokens": 400, "seed": 5}
    text = {"text": "b", "sampling_params": sampling, "stream": True}
    alone = httpx.post(f"{served.url}/generate", json=text, timeout=60).text
    data = json.dumps({"text": ["a"] * 4, "sampling_params": {**LONG, "n": 2}, "stream": True,
                       "return_logprob": True, "top_logprobs_num": 20}).encode()  # fmt: skip
    with Raw(served, size=4096) as raw:
        raw.send(POST + b"Content-Length: %d\r\n\r\n" % len(data) + data)
        until(lambda: http.stats()["running"] >= 1)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(httpx.post, f"{served.url}/generate", json=text, timeout=30)
            largest = 0
            stopped = connections[1]  # behind ``alone``'s
            while not (asked.done() and stopped._lost):
                for one in connections:
                    largest = max(largest, one.transport.get_write_buffer_size())
                time.sleep(0.002)
            beside = asked.result().text
        assert WRITE_BUFFER < largest < 4 * WRITE_BUFFER  # the buffer and one event
        until(lambda: http.stats()["contexts"] == 0)
        until(lambda: served.state.open_requests <= 1)
        assert len(raw.rest()) < 8 << 20
    after = http.stats()
    assert after["aborted"] > before["aborted"]
    assert strip(beside)[-1] == strip(alone)[-1]  # tokens of several passes may be one event


@pytest.mark.parametrize("keep", [b"", b"Connection: keep-alive\r\n"])
def test_http_1_0_gets_no_chunks(served: Served, http: Client, keep: bytes) -> None:
    """HTTP/1.0 has no chunks: the end of the connection is that of the answer."""
    body = {"text": "a", "sampling_params": {"max_new_tokens": 3, "temperature": 0}}
    whole = http.post("/generate", json=body).json()
    for stream in (True, False):
        data = json.dumps({**body, "stream": stream}).encode()
        length = b"Content-Length: %d\r\n\r\n" % len(data)
        with Raw(served) as raw:
            raw.send(POST.replace(b"HTTP/1.1", b"HTTP/1.0") + keep + length + data)
            head, _, answer = raw.rest().partition(b"\r\n\r\n")
        assert status(head) == 200
        assert b"transfer-encoding" not in head.lower()
        last = strip(answer.decode())[-1] if stream else json.loads(answer)["text"]
        assert last == ((whole["text"], whole["output_ids"]) if stream else whole["text"])


def strip(stream: str) -> list[Any]:
    events = [json.loads(line[6:]) for line in stream.split("\n") if line.startswith("data: {")]
    return [(event["text"], event["output_ids"]) for event in events]


def taken_slowly(served: Served, head: bytes, data: bytes, size: int, pause: float) -> bytes:
    """An answer read in pieces, with pauses for three times as long as one may last."""
    with Raw(served, size=4096) as raw:
        raw.send(head + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        found, start = bytearray(), 0.0
        try:
            while piece := raw.socket.recv(size):
                start = start or time.monotonic()
                found += piece
                if time.monotonic() - start < 3 * SOON:
                    time.sleep(pause)
        except ConnectionResetError:
            pass
        return bytes(found)


@pytest.mark.usefixtures("soon")
def test_a_client_that_reads_slowly_gets_everything(served: Served) -> None:
    data = json.dumps(
        {"text": "a", "sampling_params": {**LONG, "seed": 1}, "stream": True}
    ).encode()
    answers = (taken_slowly(served, POST, data, 100_000, 0.002) for _ in range(TRIES))
    assert any(b"[DONE]" in one and one.rstrip().endswith(b"0") for one in answers)


@pytest.mark.slow
@pytest.mark.usefixtures("soon")
def test_a_large_answer_that_is_taken_slowly_arrives(served: Served) -> None:
    data = json.dumps({"prompt": "x1 " * 200_000}).encode()
    head = b"POST /tokenize HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
    for left in reversed(range(TRIES)):
        answer = taken_slowly(served, head, data, 40_000, 0.02)
        if answer.endswith(b"}") or not left:
            break
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["count"] >= 400_000


@pytest.mark.usefixtures("soon")
def test_a_client_that_never_takes_its_last_bytes_is_let_go(
    served: Served, http: Client, connections: list[Protocol], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is complete, less is left than would have made it wait, the connection closing:
    nothing else would end it."""
    monkeypatch.setattr("sglang.srt.web.connection.protocol.WRITE_BUFFER", 1 << 30)
    served.worker.seconds = 0.0
    before = http.stats()["aborted"]
    data = json.dumps({"text": "a", "sampling_params": LONG, "stream": True}).encode()
    with Raw(served, size=4096) as raw:
        raw.send(POST + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        until(raw.answered)
        until(lambda: not http.stats()["running"])
        until(lambda: connections[0].transport.is_closing())
        assert http.stats()["aborted"] == before
        until(lambda: connections[0].parser is None)  # the connection is lost


# -- assumptions about uvicorn --------------------------------------------------------------------


def test_uvicorn_still_has_what_is_used_of_it() -> None:
    for name, own in vars(Protocol).items():
        if callable(own) and not name.startswith("_"):
            assert callable(getattr(HttpToolsProtocol, name, None)), name
    for name in ("connection_made", "connection_lost", "data_received", "pause_writing",
                 "resume_writing", "timeout_keep_alive_handler", "send_400_response"):  # fmt: skip
        assert name in vars(HttpToolsProtocol), name
    known = {*HttpToolsProtocol.__init__.__code__.co_names,
             *RequestResponseCycle.__init__.__code__.co_names}  # fmt: skip
    for name in ("pipeline", "cycle", "flow", "loop", "server_state", "connections", "transport",
                 "headers", "disconnected", "message_event", "response_started", "body",
                 "response_complete", "chunked_encoding", "expected_content_length"):  # fmt: skip
        assert name in known, name
