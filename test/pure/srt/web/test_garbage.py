"""Objects of an answered request are freed at once: none waits for a garbage collection, which
comes hundreds of requests later. Nothing large stays in the heap."""

from __future__ import annotations

import gc
import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from helpers.apis import APIS, user
from helpers.http_server import Served, serve_text
from sglang.srt.config import Config
from sglang.srt.core import heap
from sglang.srt.tokenizer.tokenizer import HUGE

LIMIT = 1 << 18
OF_A_REQUEST = {"Request", "Cycle", "Unchunked", "Limited"}  # the last: of a connection


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    config = Config.of(max_body_bytes=LIMIT)
    with serve_text(tmp_path_factory.mktemp("tokenizer"), config) as server:
        yield server


@pytest.fixture
def uncollected() -> Iterator[None]:
    """No collection in the test. What the process has made before is no matter of it: to look at
    all of that took most of the time."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


def living() -> int:
    """Number of such objects; clients in this process have requests of their own."""
    kinds = (type(each) for each in gc.get_objects())
    return sum(
        kind.__name__ in OF_A_REQUEST and kind.__module__.startswith(("starlette.", "sglang.srt."))
        for kind in kinds
    )


def down_to(count: int) -> bool:
    """Whether so few are left, once the server has seen what happened."""
    until = time.monotonic() + 20
    while living() > count:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def answered(connection: socket.socket) -> bytes:
    """The next answer's status and body."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    fields = head.lower().split(b"\r\n")
    size = [int(line[16:]) for line in fields if line.startswith(b"content-length: ")]
    while len(body) < size[0] if size else not body.endswith(b"0\r\n\r\n"):
        body += connection.recv(1 << 16)
    return head[9:12] + body


def sent(served: Served, connection: socket.socket, path: str, body: Any) -> None:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection.sendall(
        f"POST {path} HTTP/1.1\r\nHost: {connection.getpeername()[0]}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
        + data
    )


def connected(served: Served) -> socket.socket:
    host, port = served.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


# A grammar is refused: the engine of this test compiles none.
STRICT = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {}}}
REFUSED: dict[str, tuple[str, Any]] = {
    "syntax": ("/generate", b'{"text": "a"'),
    "route": ("/none", {}),
    "parameter": ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": -1}}),
    "list": ("/generate", {"text": "a", "sampling_params": {"stop": ["x"] * 9000}}),
    "ids": ("/generate", {"input_ids": [5] * 9000}),
    "too long": ("/v1/completions", {"prompt": "z q " * 9000}),
    "stream": ("/v1/chat/completions", {"messages": user("a"), "stream": True, "top_p": 0}),
    "constraint": ("/generate", {"text": "a", "sampling_params": {"regex": "(a"}}),
    "anthropic": ("/v1/messages", {"messages": user("z q " * 9000), "max_tokens": 3}),
    "response": ("/v1/responses", {"input": "a", "top_p": 0}),
    "long response": ("/v1/responses", {"input": "z q " * 9000}),
    "tool": ("/v1/chat/completions", {"messages": user("a"), "tools": [STRICT]}),
    "score": ("/v1/score", {"query": "a", "items": []}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_request_is_freed(served: Served, uncollected: None, name: str) -> None:
    before = living()
    path, body = REFUSED[name]
    with connected(served) as connection:
        for _ in range(5):
            sent(served, connection, path, body)
            assert answered(connection)[:1] == b"4"
        assert down_to(before + 2)  # the connection, and its last request
    assert down_to(before)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", APIS)
def test_an_answered_request_is_freed(
    served: Served, uncollected: None, path: str, stream: bool
) -> None:
    before = living()
    with connected(served) as connection:
        for _ in range(3):
            sent(served, connection, path, APIS[path].body("the lazy", stream, max_tokens=9))
            assert answered(connection)[:3] == b"200"
        assert down_to(before + 2)
    assert down_to(before)


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_whose_client_is_gone_is_freed(
    served: Served, uncollected: None, stream: bool
) -> None:
    before = living()
    for _ in range(3):
        with connected(served) as connection:
            body = {"text": "a", "stream": stream,
                    "sampling_params": {"max_new_tokens": 900, "ignore_eos": True}}  # fmt: skip
            sent(served, connection, "/generate", body)
            if stream:
                assert connection.recv(100)
    assert down_to(before)


def test_a_body_that_is_too_large_is_freed(served: Served, uncollected: None) -> None:
    before = living()
    for _ in range(3):
        with connected(served) as connection:
            sent(served, connection, "/generate", b" " * (LIMIT + 1))
            assert answered(connection)[:3] == b"413"
    assert down_to(before)


def test_a_heap_is_trimmed_after_huge_texts_alone(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    trims: list[int] = []
    monkeypatch.setattr(heap, "trim", lambda: trims.append(1))
    tokenizer = served.tokenizer
    for encode in (tokenizer.encode, tokenizer.encode_escaped):
        for size, count in ((HUGE - 1, 0), (HUGE, 1), (3 * HUGE, 1)):
            trims.clear()
            assert len(encode("a" * size)) > 0
            assert len(trims) == count, (encode, size)


def test_trimming_is_done_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    monkeypatch.setattr(heap, "_trimmer", lambda: called.append)
    heap.trim()
    assert called == [0]
    monkeypatch.setattr(heap, "_trimmer", lambda: None)
    heap.trim()
    monkeypatch.undo()
    heap.trim()
