"""Instant: answers without a model, at once, as a backend in this process and as an HTTP server.

``python -m benchmark.frontend.instant`` is the server, in a process of its own, so that it shares
no interpreter lock with what is measured. An answer is a function of its prompt; a token is a
character.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sglang.backend.base import Backend, Completion, Prompt
from sglang.ir.choices import ChoicesMethod, Decision
from sglang.ir.params import GenParams

_HEAD = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
_INFO: Any = {"model_path": "instant"}
_SEEN = {"requests": 0, "checksum": 0}  # by the server, whatever the order


def word(text: str) -> str:
    """Answer of the model to ``text``."""
    return f"w{zlib.crc32(text.encode()) % 1000}"


class Instant(Backend):
    """Answers in the calling thread, without a request."""

    name = "instant"

    def complete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        return [Completion(word(prompt.text), _meta(prompt.text))]

    async def acomplete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        return self.complete(prompt, params)

    def stream(self, prompt: Prompt, params: GenParams) -> Iterator[Completion]:
        yield from self.complete(prompt, params)

    async def astream(self, prompt: Prompt, params: GenParams) -> AsyncIterator[Completion]:
        for completion in self.complete(prompt, params):
            yield completion

    def choose(self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod) -> Decision:
        return Decision(options[zlib.crc32(prompt.text.encode()) % len(options)], {})

    async def achoose(
        self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
    ) -> Decision:
        return self.choose(prompt, options, method)

    async def acommit(self, prompt: Prompt) -> dict[str, Any]:
        return self.commit(prompt)


def answer(body: dict[str, Any]) -> Any:
    """The answer to a ``/generate`` request: a dict, or a list of them for a list of texts."""
    if isinstance(body["text"], list):
        return [answer({**body, "text": text}) for text in body["text"]]
    text = body["text"]
    meta = _meta(text)
    if body.get("return_logprob"):
        start = body["logprob_start_len"]
        meta["input_token_logprobs"] = [
            [-(zlib.crc32(text[: i + 1].encode()) % 997) / 100, ord(text[i]), text[i]]
            for i in range(start, len(text))
        ]
        meta["output_token_logprobs"] = []
    said = word(text) if body["sampling_params"]["max_new_tokens"] else ""
    return {"text": said, "output_ids": [], "meta_info": meta}


def _meta(text: str) -> dict[str, Any]:
    return {
        "id": "0",
        "finish_reason": {"type": "stop", "matched": None},
        "prompt_tokens": len(text),
        "completion_tokens": 1,
        "cached_tokens": 0,
    }


class _Connection(asyncio.Protocol):
    """One connection; requests come whole or in pieces, one after the other."""

    def connection_made(self, transport: Any) -> None:
        self._transport, self._data = transport, b""

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head, start = self._data[:end].lower(), end + 4
            _, found, rest = head.partition(b"\r\ncontent-length:")
            length = int(rest.partition(b"\r\n")[0]) if found else 0
            if len(self._data) < start + length:
                return
            body, self._data = self._data[start : start + length], self._data[start + length :]
            self._answer(head.split(b" ", 2)[1], body)

    def _answer(self, path: bytes, body: bytes) -> None:
        status, value = 200, _INFO
        if path == b"/generate":
            value = _generate(json.loads(body))
        elif path == b"/get_server_info":
            value = _SEEN
        elif path != b"/get_model_info":
            status, value = 404, {"error": {"message": "no such route"}}
        data = json.dumps(value).encode()
        self._transport.write(_HEAD % (status, len(data)) + data)


def _generate(body: dict[str, Any]) -> Any:
    _SEEN["requests"] += 1
    _SEEN["checksum"] += zlib.crc32(json.dumps(body, sort_keys=True).encode())
    return answer(body)


async def _serve() -> None:
    """Serve until standard input is closed; the first line of output is the URL."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(_Connection, "127.0.0.1", 0, backlog=1024)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await loop.run_in_executor(None, sys.stdin.read)


@contextmanager
def server() -> Iterator[str]:
    """URL of an instant server, which ends with the block."""
    command = [sys.executable, "-m", "benchmark.frontend.instant"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


if __name__ == "__main__":
    asyncio.run(_serve())
