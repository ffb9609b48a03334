"""A tiny streaming server with the routes that a load generator uses, in a thread.

It answers at once, with text that is a function of the prompt, and remembers prompts as a prefix
cache would: ``cached_tokens`` is the longest prefix shared with any earlier prompt.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Sequence
from typing import Any

from helpers.fake_service import FakeService

Prompt = Sequence[Any]


class FakeEndpoint(FakeService):
    """``with FakeEndpoint() as server: server.url``.

    Args:
        pause: seconds between two tokens.
        piece: bytes written at once, so that events and characters arrive in pieces; 0: whole.
        short: how many tokens fewer than requested are generated.
        busy: every n-th request is refused by 429; 0: none.
        shift: added to every answer, so that two servers differ.
    """

    def __init__(
        self, *, pause: float = 0.0, piece: int = 0, short: int = 0, busy: int = 0, shift: int = 0
    ) -> None:
        super().__init__()
        self.pause, self.piece, self.short, self.busy, self.shift = pause, piece, short, busy, shift
        self.bodies: list[dict[str, Any]] = []
        self.connections = self.under_way = self.most_under_way = self.flushes = 0
        self._seen: list[Prompt] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines if line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                await self._answer(writer, first.split(" ")[1], body)
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            writer.close()

    async def _answer(self, writer: asyncio.StreamWriter, path: str, body: bytes) -> None:
        plain = {
            "/get_model_info": {"model_path": "fake"},
            "/v1/models": {"data": [{"id": "fake"}]},
            "/get_server_info": {"stats": {"computed_tokens": sum(map(len, self._seen))}},
            "/flush_cache": {"success": True},
        }
        if path == "/flush_cache":
            self._seen.clear()
            self.flushes += 1
        if path in plain:
            _write(writer, 200, plain[path])
            return
        self.bodies.append(json.loads(body))
        if self.busy and len(self.bodies) % self.busy == 0:
            _write(writer, 429, {"error": {"message": "the queue is full"}})
            return
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await self._stream(writer, path, self.bodies[-1])
        self.under_way -= 1

    async def _stream(self, writer: asyncio.StreamWriter, path: str, body: dict[str, Any]) -> None:
        prompt = _prompt(body)
        cached = max((_shared(prompt, seen) for seen in self._seen), default=0)
        wanted = body.get("max_tokens") or body["sampling_params"]["max_new_tokens"]
        ids = _drawn(prompt, wanted - self.short, self.shift)
        self._seen.append([*prompt, *ids])
        counts = {"prompt_tokens": len(prompt), "cached_tokens": min(cached, len(prompt) - 1)}
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        make = _native if path == "/generate" else _openai
        for event in [*make(path, ids, counts), "[DONE]"]:
            await asyncio.sleep(self.pause)
            data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
            payload = f"data: {data}\n\n".encode()
            step = self.piece or len(payload)
            for at in range(0, len(payload), step):
                part = payload[at : at + step]
                writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                if self.piece:
                    await asyncio.sleep(0)
            await writer.drain()
        writer.write(b"0\r\n\r\n")


def _write(writer: asyncio.StreamWriter, status: int, value: Any) -> None:
    data = json.dumps(value).encode()
    writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)


def _prompt(body: dict[str, Any]) -> Prompt:
    """Ids, or words of a text."""
    if "messages" in body:
        return " ".join(message["content"] for message in body["messages"]).split()
    prompt: Any = body.get("input_ids") or body.get("prompt") or body.get("text")
    return prompt.split() if isinstance(prompt, str) else list(prompt)


def _shared(a: Prompt, b: Prompt) -> int:
    for index, (x, y) in enumerate(zip(a, b)):
        if x != y:
            return index
    return min(len(a), len(b))


def _drawn(prompt: Prompt, count: int, shift: int) -> list[int]:
    start = zlib.crc32(" ".join(map(str, prompt)).encode()) + shift
    return [(start + 7 * i) % 1000 + 1 for i in range(count)]


def _letter(token: int) -> str:
    return f"é{token} "


def _native(path: str, ids: list[int], counts: dict[str, int]) -> list[Any]:
    events = []
    for n in range(1, len(ids) + 1):
        last = {"type": "length", "length": n} if n == len(ids) else None
        meta = {**counts, "completion_tokens": n, "finish_reason": last}
        text = "".join(map(_letter, ids[:n]))
        events.append({"text": text, "output_ids": ids[:n], "meta_info": meta})
    return events


def _openai(path: str, ids: list[int], counts: dict[str, int]) -> list[Any]:
    chat = "chat" in path
    events: list[Any] = [{"choices": [{"delta": {"role": "assistant", "content": ""}}]}] * chat
    for n, token in enumerate(ids, 1):
        text = _letter(token)
        choice: dict[str, Any] = {"delta": {"content": text}} if chat else {"text": text}
        choice["finish_reason"] = "length" if n == len(ids) else None
        events.append({"choices": [choice]})
    usage = {
        "prompt_tokens": counts["prompt_tokens"],
        "completion_tokens": len(ids),
        "prompt_tokens_details": {"cached_tokens": counts["cached_tokens"]},
    }
    return [*events, {"choices": [], "usage": usage}]
