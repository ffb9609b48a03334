"""OpenAI's three text APIs in a thread, over real HTTP: scripted replies, the real service's rules.

It cuts replies at stop strings and at the token limit, streams, counts and refuses as the real
service does (see ``_refusal``), and keeps every body and header. A token is a word with the space
before it.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from helpers.fake_service import Broken, FakeService, Late, Refuse

Body = dict[str, Any]


# A text; the message itself (content None, a refusal, ``finish_reason``); or a way to fail.
Reply = str | dict[str, Any] | Refuse | Broken | Late
Script = Reply | list[Reply] | Callable[[Body], Reply]


class FakeOpenAI(FakeService):
    """``with FakeOpenAI(["Paris", "Rome"]) as service: OpenAI("gpt-4o", base_url=service.url)``

    Args:
        script: a list of replies used in turn, the last one for ever; a function of the body (see
            ``by_prompt``); or one reply for all.
        usage: False: no reply tells its tokens.
        echo: False: a prompt's log-probabilities are refused.
        scores: log-probability of each word; others have -1.
        gather: a reply waits until so many requests are in flight.
        told: JSON that GET requests are answered with, by path; others are not found.

    Attributes:
        url: for ``base_url``.
        questions: paths of GET requests.
        paths, bodies, headers: of all requests, in order; names of headers in lower case.
        prompt_tokens, completion_tokens: of all replies.
        most_under_way: most requests at a time.
        connections: those that are open.
    """

    base = "/v1"

    def __init__(
        self,
        script: Script = "ok",
        *,
        usage: bool = True,
        echo: bool = True,
        scores: Mapping[str, float] | None = None,
        gather: int = 1,
        told: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self.told, self.questions = told or {}, list[str]()
        self.script, self.usage, self.echo, self.gather = script, usage, echo, gather
        self.scores = scores or {}
        self.paths: list[str] = []
        self.bodies: list[Body] = []
        self.headers: list[dict[str, str]] = []
        self.prompt_tokens = self.completion_tokens = 0
        self.under_way = self.most_under_way = self.connections = 0

    def _prepare(self) -> None:
        self._gathered = asyncio.Condition()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                first, *lines = head.decode().split("\r\n")
                pairs = (line.split(": ", 1) for line in lines if line)
                headers = {name.lower(): value for name, value in pairs}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                if first.startswith("GET "):
                    self._tell(writer, first.split(" ")[1])
                    continue
                self.paths.append(first.split(" ")[1])
                self.headers.append(headers)
                self.bodies.append(json.loads(body))
                await self._answer(reader, writer, self.paths[-1], self.bodies[-1])
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    def _tell(self, writer: asyncio.StreamWriter, path: str) -> None:
        self.questions.append(path)
        found = self.told.get(path)
        self._write(writer, 404 if found is None else 200, found or {"error": "not found"})

    async def _answer(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: Body
    ) -> None:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            async with self._gathered:
                self._gathered.notify_all()
                await self._gathered.wait_for(lambda: self.most_under_way >= self.gather)
            refused = _refusal(path, body, self.echo)
            reply = Refuse(400, refused) if refused else self._scripted(body)
            if isinstance(reply, Late) and not body.get("stream"):
                await _later(reader, reply.seconds)
            if isinstance(reply, Refuse) and not reply.as_event:
                self._write(writer, reply.status, _error(reply), reply.headers)
            elif body.get("stream"):
                await self._stream(reader, writer, path, body, reply)
            elif isinstance(reply, Broken):
                if reply.body is not None:
                    self._write(writer, 200, reply.body, {"Connection": "close"})
                raise ConnectionError
            else:
                self._write(writer, 200, self._whole(path, body, reply))
        finally:
            self.under_way -= 1

    def _scripted(self, body: Body) -> Reply:
        script: Any = self.script
        if callable(script):
            return script(body)
        if isinstance(script, list):
            return script[min(len(self.bodies), len(script)) - 1]
        return script

    def _write(
        self, writer: asyncio.StreamWriter, status: int, value: Any, more: Any = None
    ) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        headers = {
            "Content-Length": len(data), "Content-Type": "application/json",
            "x-request-id": f"req_{len(self.bodies)}", **(more or {}),
        }  # fmt: skip
        lines = "".join(f"{name}: {text}\r\n" for name, text in headers.items())
        writer.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + data)

    def _whole(self, path: str, body: Body, reply: Any) -> Body:
        """A reply in full."""
        prompt = body.get("prompt")
        texts: list[Any] = [None]
        if isinstance(prompt, list) and all(isinstance(text, str) for text in prompt):
            texts = prompt
        choices = [
            self._choice(body, reply, text, index * (body.get("n") or 1) + again)
            for index, text in enumerate(texts)
            for again in range(body.get("n") or 1)
        ]
        usage = self._counted(body, choices)
        if path.endswith("/responses"):
            return _response(body, choices[0], usage)
        whole = {"id": "chatcmpl-1", "object": "x", "created": 0, "model": body["model"]}
        return {**whole, "choices": choices, **({"usage": usage} if self.usage else {})}

    def _choice(self, body: Body, reply: Any, prompt: str | None, index: int) -> Body:
        if isinstance(reply, Late):
            reply = reply.text
        if isinstance(reply, dict):
            message, text = {"role": "assistant", **reply}, reply.get("content") or ""
            finish = message.pop("finish_reason", "stop")
        else:
            text, finish = _cut(body, reply)
            message = {"role": "assistant", "content": text}
        choice: Body = {"index": index, "finish_reason": finish}
        tokens = words(text)
        if "messages" in body or "input" in body:
            choice["message"] = message
            if body.get("logprobs") or body.get("include"):
                choice["logprobs"] = {"content": [self._scored(body, token) for token in tokens]}
            return choice
        if body.get("echo"):
            tokens = words(prompt or body["prompt"]) + tokens
            text = (prompt or body["prompt"]) + text
        choice["text"] = text
        if body.get("logprobs") is not None:
            values = [self.scores.get(token.strip(), -1.0) for token in tokens]
            first = [None] if body.get("echo") else values[:1]
            tops = [{token: value} for token, value in zip(tokens, values)]
            choice["logprobs"] = {
                "tokens": tokens, "token_logprobs": first + values[1:], "top_logprobs": tops,
            }  # fmt: skip
        return choice

    def _scored(self, body: Body, token: str) -> Body:
        own = {"token": token, "logprob": self.scores.get(token.strip(), -1.0), "bytes": None}
        return {**own, "top_logprobs": [own] * (body.get("top_logprobs") or 0)}

    def _counted(self, body: Body, choices: Sequence[Body]) -> Body:
        prompt, drawn = len(words(prompt_of(body))), sum(map(_length, choices))
        self.prompt_tokens += prompt
        self.completion_tokens += drawn
        return {
            "prompt_tokens": prompt, "completion_tokens": drawn, "total_tokens": prompt + drawn,
            "prompt_tokens_details": {"cached_tokens": prompt // 2},
        }  # fmt: skip

    async def _stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str, body: Body,
        reply: Any,
    ) -> None:  # fmt: skip
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            + f"x-request-id: req_{len(self.bodies)}\r\n".encode()
            + b"Connection: close\r\n" * isinstance(reply, Broken)
            + b"Transfer-Encoding: chunked\r\n\r\n"
        )
        whole = self._whole(path, body, _text(reply))
        events = list(_response_events(whole) if "input" in body else _chunks(whole))
        asked = (body.get("stream_options") or {}).get("include_usage")
        if asked and self.usage:
            events.append({**whole, "choices": []})
        if isinstance(reply, Refuse):
            events = [events[0], _error(reply)]
        for index, event in enumerate(events):
            if isinstance(reply, Late) and index == len(events) // 2:
                await _later(reader, reply.seconds)
            if isinstance(reply, Broken) and index == max(1, len(words(reply.text))):
                break
            kind = f"event: {event['type']}\n" if "input" in body and "type" in event else ""
            _write_chunk(writer, f"{kind}data: {json.dumps(event)}\n\n".encode())
            await writer.drain()
        if isinstance(reply, Broken):
            if reply.body is not None:
                _write_chunk(writer, reply.body + b"\n")
                writer.write(b"0\r\n\r\n")
            await writer.drain()
            raise ConnectionError
        if "input" not in body:
            _write_chunk(writer, b"data: [DONE]\n\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


async def _later(reader: asyncio.StreamReader, seconds: float) -> None:
    """Raises ConnectionError where the client does not wait for it."""
    try:
        await asyncio.wait_for(reader.read(1), seconds)
    except asyncio.TimeoutError:
        return
    raise ConnectionError


def by_prompt(replies: Mapping[str, Reply]) -> Callable[[Body], Reply]:
    """A script: from a text that occurs in the prompt, the one that occurs last, to its reply."""
    return lambda body: replies[max(replies, key=prompt_of(body).rfind)]


def words(text: str) -> list[str]:
    """The tokens of a text."""
    return re.findall(r"\s*\S+|\s+$", text)


def prompt_of(body: Body) -> str:
    """All that the model reads, as one text."""
    prompt: Any = body.get("messages") or body.get("input") or body.get("prompt") or ""
    if isinstance(prompt, str):
        return prompt
    if all(isinstance(token, int) for token in prompt):
        return " ".join(map(str, prompt))
    return "\n".join(
        _content(turn if isinstance(turn, str) else turn.get("content") or turn.get("output"))
        for turn in prompt
    )


def _content(content: Any) -> str:
    if isinstance(content, str) or content is None:
        return content or ""
    return " ".join(part.get("text", "") for part in content)


def _refusal(path: str, body: Body, echo: bool) -> str:
    """Reason for which the real service would refuse this, or ""."""
    stops = body.get("stop") or []
    if len(stops) > 4:
        return f"Invalid 'stop': array too long. Expected at most 4, got {len(stops)}."
    if re.match(r"o\d|gpt-5", body["model"]):
        for name in ("stop", "max_tokens"):
            if name in body:
                return f"Unsupported parameter: '{name}' is not supported with this model."
        if body.get("temperature", 1) != 1:
            return "Unsupported value: 'temperature' does not support 0 with this model."
    if path.endswith("/responses") and {"stop", "seed", "n", "max_tokens"} & body.keys():
        return "Unknown parameter."
    if unanswered := _calls(body) ^ _results(body):
        return f"Each call must have one result, and each result a call: {unanswered}"
    if body.get("echo") and body.get("logprobs") is not None and not echo:
        return "Setting 'echo' and 'logprobs' at the same time is not supported for this model."
    return ""


def _calls(body: Body) -> set[str]:
    made = [c["id"] for turn in body.get("messages") or () for c in turn.get("tool_calls") or ()]
    items = given if isinstance(given := body.get("input"), list) else ()
    return {*made, *(i["call_id"] for i in items if i.get("type") == "function_call")}


def _results(body: Body) -> set[str]:
    turns = body.get("messages") or ()
    items = given if isinstance(given := body.get("input"), list) else ()
    found = {turn["tool_call_id"] for turn in turns if turn["role"] == "tool"}
    return found | {i["call_id"] for i in items if i.get("type") == "function_call_output"}


def _cut(body: Body, text: str) -> tuple[str, str]:
    """The text up to a stop or the limit, and which it was."""
    names = ("max_tokens", "max_completion_tokens", "max_output_tokens")
    limit = next((body[name] for name in names if name in body), None)
    tokens, finish = words(text), "stop"
    if limit is not None and len(tokens) > limit:
        text, finish = "".join(tokens[:limit]), "length"
    cuts = [text.find(stop) for stop in body.get("stop") or () if stop in text]
    return (text[: min(cuts)], "stop") if cuts else (text, finish)


def _text(reply: Any) -> Any:
    """Text of a failing reply before it fails."""
    if isinstance(reply, Refuse):
        return "none"
    return (reply.text or "none") if isinstance(reply, Broken) else reply


def _length(choice: Body) -> int:
    text = choice.get("text") if "text" in choice else choice["message"].get("content")
    return len(words(text or ""))


def _error(reply: Refuse) -> Body:
    error = {"message": reply.message, "type": "x", "param": None, "code": None}
    return {"error": error, "type": "error", "message": reply.message}


def _chunks(whole: Body) -> Iterator[Body]:
    (choice,) = whole["choices"]
    base = {name: value for name, value in whole.items() if name != "usage"}
    message = choice.get("message")
    odd = {k: v for k, v in (message or {}).items() if k not in ("content", "tool_calls") and v}
    for delta in _call_deltas((message or {}).get("tool_calls") or ()):
        yield {**base, "choices": [{"index": 0, "finish_reason": None, "delta": delta}]}
    tokens = words((message["content"] if message else choice["text"]) or "")
    for index, token in enumerate(tokens or [""]):
        piece: Body = {"index": 0, "finish_reason": None}
        if message:
            content = {"content": token} if message["content"] is not None else {}
            piece["delta"] = {**(odd if index == 0 else {}), **content}
        else:
            piece["text"] = token
        if choice.get("logprobs") and tokens:
            logprobs = choice["logprobs"].items()
            piece["logprobs"] = {name: values[index : index + 1] for name, values in logprobs}
        yield {**base, "choices": [piece]}
    last = {"index": 0, "finish_reason": choice["finish_reason"]}
    yield {**base, "choices": [{**last, "delta": {}} if message else {**last, "text": ""}]}


def _call_deltas(calls: Sequence[Body]) -> Iterator[Body]:
    """The pieces of each call: its name, then its arguments in two."""
    for index, call in enumerate(calls):
        function = call.get("function", {"arguments": ""})
        text = function["arguments"]
        half = len(text) // 2
        yield {"tool_calls": [{**call, "index": index, "function": {**function, "arguments": ""}}]}
        for part in (text[:half], text[half:]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": part}}]}


def _response(body: Body, choice: Body, usage: Body) -> Body:
    message, finish = choice["message"], choice["finish_reason"]
    part: Body = {"type": "output_text", "text": message.get("content") or "", "annotations": []}
    if message.get("refusal"):
        part = {"type": "refusal", "refusal": message["refusal"]}
    elif "logprobs" in choice:
        part["logprobs"] = choice["logprobs"]["content"]
    causes = {"length": "max_output_tokens", "content_filter": "content_filter"}
    cause = causes.get(finish)
    content = [] if message.get("content") is None and not message.get("refusal") else [part]
    return {
        "id": "resp_1",
        "object": "response",
        "status": "incomplete" if cause else "completed",
        "incomplete_details": {"reason": cause} if cause else None,
        "output": [
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "message", "id": "msg_1", "role": "assistant", "content": content},
            *(
                {"type": "function_call", "id": "fc_1", "call_id": call["id"], **call["function"]}
                for call in message.get("tool_calls") or ()
            ),
        ],
        "usage": {
            "input_tokens": usage["prompt_tokens"],
            "output_tokens": usage["completion_tokens"],
            "input_tokens_details": {"cached_tokens": usage["prompt_tokens"] // 2},
        },
    }


def _response_events(whole: Body) -> Iterator[Body]:
    yield {"type": "response.created", "response": {**whole, "output": [], "status": "in_progress"}}
    for part in whole["output"][1]["content"]:
        for token in words(part.get("text", "")):
            yield {"type": "response.output_text.delta", "delta": token}
    yield {"type": f"response.{whole['status']}", "response": whole}


def _write_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
