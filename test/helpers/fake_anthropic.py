"""A messages API in a thread, over real HTTP: scripted replies, the real service's rules.

It refuses what the real service refuses (see ``_refusal``), cuts at stop sequences and at
``max_tokens``, streams the real event types, and keeps every body and header. A token is a word.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Sequence
from typing import Any

from helpers.fake_service import Broken, FakeService, Late, Refuse

TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error",
    500: "api_error", 529: "overloaded_error",
}  # fmt: skip
SAMPLING = ("temperature", "top_p", "top_k")
TAKES_SAMPLING = "2023-06-01"  # later versions of the API have no sampling parameters


# A text, the content blocks and other fields of a message, an error, or a function of the body.
Reply = str | dict[str, Any] | Refuse | Broken | Late
Script = Sequence[Reply | Callable[[dict[str, Any]], Reply]]


class FakeAnthropic(FakeService):
    """``with FakeAnthropic("a reply") as service: Anthropic(..., base_url=service.url)``

    Args:
        replies: given in turn; the last one is given for ever.
        prefill: False: a final assistant turn is refused, as newer models do.
        sampling: False: sampling parameters are refused in every version, as newer models do.
        cached: input tokens that count as read from the prompt cache.
        gather: a reply waits until so many requests are in flight.
    """

    def __init__(
        self,
        *replies: Reply | Callable[[dict[str, Any]], Reply],
        prefill: bool = True,
        sampling: bool = True,
        cached: int = 0,
        gather: int = 1,
    ) -> None:
        super().__init__()
        self.prefill, self.sampling, self.cached, self.gather = prefill, sampling, cached, gather
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.under_way = self.most_under_way = 0
        self._replies: Script = replies
        self._served = 0

    @property
    def body(self) -> dict[str, Any]:
        """Body of the last request."""
        return self.bodies[-1]

    def _prepare(self) -> None:
        self._gathered = asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                _, *lines = head.decode().split("\r\n")
                pairs = [line.split(": ", 1) for line in lines if line]
                headers = {name.lower(): value for name, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.headers.append(headers)
                self.bodies.append(json.loads(body))
                if not await self._answer(writer, self.bodies[-1], headers):
                    break
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, writer: asyncio.StreamWriter, body: dict[str, Any], headers: dict[str, str]
    ) -> bool:
        """Whether the connection stays."""
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            if self.under_way >= self.gather:
                self._gathered.set()
            await self._gathered.wait()
            message = _refusal(body, headers, self.prefill, self.sampling)
            return await self._send(writer, body, Refuse(400, message) if message else self._next())
        finally:
            self.under_way -= 1

    def _next(self) -> Reply:
        reply = self._replies[min(self._served, len(self._replies) - 1)]
        self._served += 1
        return reply(self.bodies[-1]) if callable(reply) else reply

    async def _send(self, writer: asyncio.StreamWriter, body: dict[str, Any], reply: Reply) -> bool:
        streamed = body.get("stream", False)
        if isinstance(reply, Refuse) and not reply.as_event:
            _write(writer, reply.status, _error(reply), reply.headers)
            return True
        if isinstance(reply, Broken) and not (streamed and reply.text):
            if reply.body is not None:
                _write(writer, 200, reply.body)
            return False
        if isinstance(reply, Late) and not streamed:
            await asyncio.sleep(reply.seconds)
        text = reply.text if isinstance(reply, (Broken, Late)) else reply
        message = self._message(body, "so far" if isinstance(text, Refuse) else text)
        if not streamed:
            _write(writer, 200, message)
            return True
        return await self._stream(writer, _events(message), reply)

    async def _stream(self, writer: asyncio.StreamWriter, events: list[Any], reply: Reply) -> bool:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nrequest-id: req_fake\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        if isinstance(reply, Refuse):
            events = [*events[:4], _error(reply)]
        if isinstance(reply, Broken):
            events = events[:-2]
        for index, event in enumerate(events):
            if isinstance(reply, Late) and index == len(events) // 2:
                await asyncio.sleep(reply.seconds)
            _chunk(writer, f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode())
            await writer.drain()
        if isinstance(reply, Broken):
            if reply.body is None:
                return False
            _chunk(writer, reply.body)
        writer.write(b"0\r\n\r\n")
        return True

    def _message(self, body: dict[str, Any], reply: str | dict[str, Any]) -> dict[str, Any]:
        fields: dict[str, Any] = reply if isinstance(reply, dict) else _generated(body, reply)
        written = sum(len(_words(block.get("text", ""))) for block in fields["content"])
        read = len(_words(" ".join(_texts([body.get("system", ""), body["messages"]]))))
        return {
            "id": f"msg_{len(self.bodies)}", "type": "message", "role": "assistant",
            "model": body["model"], "stop_reason": "end_turn", "stop_sequence": None,
            "usage": {
                "input_tokens": read - self.cached, "cache_read_input_tokens": self.cached,
                "cache_creation_input_tokens": 0, "output_tokens": written,
            },
            **fields,
        }  # fmt: skip


def _refusal(body: dict[str, Any], headers: dict[str, str], prefill: bool, sampling: bool) -> str:
    """Reason for which the real service would refuse the request, or ""."""
    messages, last = body["messages"], body["messages"][-1] if body["messages"] else {}
    version = headers["anthropic-version"]
    sent = [name for name in SAMPLING if name in body]
    rules = {
        "messages: at least one message is required": not messages,
        f"{sent}: Extra inputs are not permitted": sent and version != TAKES_SAMPLING,
        f"`{sent}` is deprecated for this model.": sent and not sampling,
        "temperature: range: 0..1": body.get("temperature", 0) > 1,
        "max_tokens: Field required": "max_tokens" not in body,
        "messages: role must be user or assistant": any(
            message["role"] not in ("user", "assistant") for message in messages
        ),
        "messages: text content blocks must contain non-whitespace text": not all(
            text.strip() for message in messages for text in _texts(message["content"])
        ),
        "stop_sequences: each stop sequence must contain non-whitespace": not all(
            stop.strip() for stop in body.get("stop_sequences", ())
        ),
        "This model does not support assistant message prefill. "
        "The conversation must end with a user message.": last.get("role") == "assistant"
        and not prefill,
        "tool_use ids were found without tool_result blocks immediately after": not all(
            _ids(after, "tool_result", "tool_use_id") == made
            for before, after in zip(messages, [*messages[1:], {"content": ""}])
            if (made := _ids(before, "tool_use", "id"))
        ),
        "tools: must be defined where there are tool blocks": "tools" not in body
        and any(_ids(message, "tool_use", "id") for message in messages),
        "messages: final assistant content cannot end with trailing whitespace": last.get("role")
        == "assistant"
        and "".join(_texts(last["content"])) != "".join(_texts(last["content"])).rstrip(),
    }
    return next((message for message, broken in rules.items() if broken), "")


def _ids(message: dict[str, Any], kind: str, key: str) -> set[str]:
    content = message["content"]
    blocks = content if isinstance(content, list) else []
    return {block[key] for block in blocks if block.get("type") == kind}


def _generated(body: dict[str, Any], text: str) -> dict[str, Any]:
    """Content and stop reason of ``text``, cut as the request asks."""
    words, reason, matched = _words(text), "end_turn", None
    if len(words) > body["max_tokens"]:
        text, reason = "".join(words[: body["max_tokens"]]), "max_tokens"
    stops = body.get("stop_sequences", ())
    cuts = [(at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    if cuts:
        at, matched = min(cuts)
        text, reason = text[:at], "stop_sequence"
    return {
        "content": [{"type": "text", "text": text}] if text else [],
        "stop_reason": reason,
        "stop_sequence": matched,
    }


def _events(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The stream of a message, a word at a time."""
    usage = {**message["usage"], "output_tokens": 1}
    start = {**message, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": start}, {"type": "ping"}]
    for index, block in enumerate(message["content"]):
        if block["type"] == "tool_use":
            empty: dict[str, Any] = {
                "type": "content_block_start",
                "content_block": {**block, "input": {}},
            }
            text = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": one} for one in ("", *text)]
            parts: list[dict[str, Any]] = [
                {"type": "content_block_delta", "delta": delta} for delta in deltas
            ]
            for event in [empty, *parts, {"type": "content_block_stop"}]:
                events.append({**event, "index": index})
            continue
        kind = "thinking" if block["type"] == "thinking" else "text"
        empty = {"type": "content_block_start", "content_block": {**block, kind: ""}}
        deltas = [{"type": f"{kind}_delta", kind: word} for word in _words(block[kind])]
        parts = [{"type": "content_block_delta", "delta": delta} for delta in deltas]
        for event in [empty, *parts, {"type": "content_block_stop"}]:
            events.append({**event, "index": index})
    ended = {
        name: message[name]
        for name in ("stop_reason", "stop_sequence", "stop_details")
        if name in message
    }
    output = {"output_tokens": message["usage"]["output_tokens"]}
    return [
        *events,
        {"type": "message_delta", "delta": ended, "usage": output},
        {"type": "message_stop"},
    ]


def _error(reply: Refuse) -> dict[str, Any]:
    error = {"type": TYPES.get(reply.status, "api_error"), "message": reply.message}
    return {"type": "error", "error": error, "request_id": "req_fake"}


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return _texts(value.get("content", value.get("text", [])))


def _words(text: str) -> list[str]:
    return re.findall(r"\s*\S+|\s+$", text)


def _write(
    writer: asyncio.StreamWriter, status: int, value: Any, headers: dict[str, str] | None = None
) -> None:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    more = "".join(f"{name}: {content}\r\n" for name, content in (headers or {}).items())
    writer.write(
        f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nrequest-id: req_fake\r\n"
        f"{more}Content-Length: {len(data)}\r\n\r\n".encode()
        + data
    )


def _chunk(writer: asyncio.StreamWriter, part: bytes) -> None:
    writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
