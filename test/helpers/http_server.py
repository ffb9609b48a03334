"""The HTTP application on a real socket, over the real engine with a worker that needs no model."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from helpers.text_worker import TextWorker, text_engine
from helpers.toy_tokenizer import byte_level
from sglang.srt.config import Config
from sglang.srt.requests.completion.completer import Completer
from sglang.srt.tokenizer import Tokenizer
from sglang.srt.web.app import make_app
from sglang.srt.web.connection.protocol import protocol
from sglang.srt.web.server_state import ServerState
from starlette.applications import Starlette

GOLDEN = {"text": "the lazy dog", "sampling_params": {"max_new_tokens": 24, "temperature": 0}}


class Client(httpx.Client):
    """A client of one server, with the checks that follow every hostile request."""

    def golden(self) -> tuple[str, list[int]]:
        """Text and ids of a fixed request: the same for ever."""
        reply = self.post("/generate", json=GOLDEN)
        assert reply.status_code == 200, reply.text
        return reply.json()["text"], reply.json()["output_ids"]

    def stats(self) -> dict[str, Any]:
        return self.get("/get_server_info").json()["stats"]

    def parked(self, stats: dict[str, Any]) -> int:
        """Number of contexts that wait for a tool, where the engine has any context."""
        text = self.get("/metrics").text if stats["contexts"] else ""
        found = re.search(r"^sglang:num_parked_contexts\{.*\} (\S+)$", text, re.MULTILINE)
        return 0 if found is None else int(float(found[1]))

    def idle(self, seconds: float = 60.0) -> dict[str, Any]:
        """Statistics once nothing is running but what is parked waits; asserts that the books
        balance."""
        deadline = time.monotonic() + seconds
        stats = self.stats()
        while stats["running"] or stats["waiting"] or stats["contexts"] > self.parked(stats):
            assert time.monotonic() < deadline, f"not idle: {stats}"
            time.sleep(0.02)
            stats = self.stats()
        assert stats["free_tokens"] + stats["evictable_tokens"] == stats["total_tokens"]
        assert stats["protected_tokens"] == stats["bad_verbs"] == stats["bad_frames"] == 0
        assert stats["received"] == stats["finished"] + stats["aborted"] + stats["failed"]
        return stats


def is_error(reply: httpx.Response, status: int) -> dict[str, Any]:
    """The nested error of a reply; asserts its shape, and that no traceback leaves."""
    assert reply.status_code == status, reply.text
    error = reply.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "Traceback" not in reply.text
    assert '.py"' not in reply.text
    return error


@dataclass
class Served:
    url: str
    app: Starlette
    state: ServerState
    worker: TextWorker
    tokenizer: Tokenizer
    client: Client
    thread: threading.Thread

    def open(
        self, body: dict[str, Any], path: str = "/generate", headers: str = ""
    ) -> socket.socket:
        """A socket on which one request has been sent and nothing read. ``headers``: more lines,
        each with its end."""
        host, port = self.url.removeprefix("http://").split(":")
        data = json.dumps(body).encode()
        connection = socket.create_connection((host, int(port)), timeout=60)
        connection.sendall(
            f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"{headers}Content-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        return connection


@contextlib.contextmanager
def serve_text(
    directory: Path,
    config: Config | None = None,
    tokenizer: Tokenizer | None = None,
    **options: Any,
) -> Iterator[Served]:
    """A server on a free port, until the end of the block."""
    config = config or Config.of()
    tokenizer = tokenizer or Tokenizer(byte_level(directory))
    engine, worker = text_engine(tokenizer, **options)
    ready, made = threading.Event(), []

    def run() -> None:
        async def main() -> None:
            client = engine.client_on(asyncio.get_running_loop())
            completion = Completer(client, tokenizer, config.server.max_tokenized_bytes)
            state = ServerState(config, completion)
            app = make_app(state)
            server = uvicorn.Server(
                uvicorn.Config(app, port=0, log_config=None, lifespan="off",
                               http=protocol(config.edge), ws="none",
                               timeout_keep_alive=config.edge.keep_alive_timeout,
                               timeout_graceful_shutdown=1, access_log=False)
            )  # fmt: skip
            # asyncio sends at once (TCP_NODELAY) where the protocol is named, as the launcher does.
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
            listener.bind(("127.0.0.1", 0))
            listener.listen(1024)
            made.extend([app, state, server, listener.getsockname()[1]])
            ready.set()
            await server.serve([listener])

        asyncio.run(main())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    ready.wait()
    app, state, server, port = made
    url = f"http://127.0.0.1:{port}"
    key = config.server.api_key
    headers = {b"Authorization": b"Bearer " + key.encode()} if key else {}
    try:
        with Client(base_url=url, timeout=60, headers=headers) as client:
            yield Served(url, app, state, worker, tokenizer, client, thread)
    finally:
        server.should_exit = True
        thread.join(timeout=60)
        engine.close()
