"""POST /v1/completions."""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import aclosing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from srt.core.messages import TopPairs
from srt.program.output import Output
from srt.program.request import Ask, Logprobs, RequestError
from srt.server.body import read_body
from srt.server.errors import json_response
from srt.server.openai import (
    Collected,
    Progress,
    Reply,
    SharedBody,
    finish_fields,
    hidden_of,
    new_reply,
    refuse,
    sampling_of,
    usage,
)
from srt.server.service import Service
from srt.server.stream import respond, unless_gone

DEFAULT_MAX_TOKENS = 16
KIND = "text_completion"


class CompletionBody(SharedBody, kw_only=True):
    """``max_tokens`` of 0 with ``echo`` scores the prompt."""

    prompt: Any = None
    best_of: int | None = None
    echo: bool | None = None
    logprobs: int | None = None
    suffix: str | None = None


async def completions(service: Service, request: Request) -> Response:
    body = await read_body(request, CompletionBody, service.body_limit)
    asks, echoes = await _asks(service, body)
    reply = new_reply(service, body, "cmpl")
    if body.stream:
        return await respond(request, _events(service, body, reply, asks, echoes))
    results = await unless_gone(request, service.finish(asks))
    choices: list[dict[str, Any]] = []
    for ask, echo, outputs in zip(asks, echoes, results):
        for output in outputs:
            choice = {"index": len(choices), "text": echo + output.text, "logprobs": None}
            if ask.logprobs is not None:
                lines = _Lines(service, hidden_of(service, body))
                if body.echo:
                    lines.prompt(ask, output)
                lines.drawn(output, range(output.released))
                choice["logprobs"] = lines.value()
            choices.append({**choice, **finish_fields(output)})
    return json_response({**reply.head(KIND), "choices": choices, "usage": usage(results)})


async def _asks(service: Service, body: CompletionBody) -> tuple[list[Ask], list[str]]:
    """The asks, and before each answer the text that ``echo`` shows."""
    refuse("suffix", body.suffix)
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise RequestError(
            f"best_of is {body.best_of}; only the value of n is available. Remove it.",
            "best_of",
            "unsupported",
        )
    prompts = _prompts(body.prompt)
    service.admit(len(prompts))
    limit = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    sampling, logprobs = sampling_of(body, limit), None
    if body.logprobs is not None:
        logprobs = Logprobs(top=body.logprobs, start=0 if body.echo else -1)
    asks, echoes = [], []
    for prompt in prompts:
        ids = await service.prompt(prompt)
        rid, salt = body.rid or "", body.cache_salt or ""
        whole = body.choices_scoring == "whole"
        asks.append(
            Ask(ids, sampling, logprobs, rid, body.priority or 0, salt, score_choices=whole)
        )
        text = prompt if isinstance(prompt, str) else service.tokenizer.decode(ids)
        echoes.append(text if body.echo else "")
    return asks, echoes


def _prompts(prompt: Any) -> list[Any]:
    """One prompt, text or ids, an entry."""
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise RequestError("prompt must be text, token ids, or a list of either.", "prompt")
    return [prompt] if isinstance(prompt[0], int) else prompt


async def _events(
    service: Service, body: CompletionBody, reply: Reply, asks: list[Ask], echoes: list[str]
) -> AsyncGenerator[dict[str, Any], None]:
    counted = bool(body.stream_options and body.stream_options.include_usage)
    head = {**reply.head(KIND), **({"usage": None} if counted else {})}
    interval, count = service.config.server.stream_interval, body.n or 1
    progress: defaultdict[int, Progress] = defaultdict(Progress)
    lines: dict[int, _Lines] = {}
    collected, hidden = Collected(len(asks)), hidden_of(service, body)
    async with aclosing(service.run(asks)) as items:
        async for index, output in items:
            collected.note(index, output)
            place = index * count + output.index
            sent = progress[place]
            if not sent.ready(output, interval):
                continue
            first = not sent.begun
            text, tokens = sent.take(output)
            choice: dict[str, Any] = {"index": place, "text": text, "logprobs": None}
            if first:
                choice["text"] = echoes[index] + text
            if asks[index].logprobs is not None:
                writer = lines.setdefault(place, _Lines(service, hidden))
                if first and body.echo:
                    writer.prompt(asks[index], output)
                writer.drawn(output, tokens)
                choice["logprobs"] = writer.value()
            yield {**head, "choices": [{**choice, **finish_fields(output)}]}
    if counted:
        yield {**head, "choices": [], "usage": collected.usage()}


class _Lines:
    """OpenAI's legacy form: parallel lists. ``value`` hands over what was added since the last."""

    def __init__(self, service: Service, hidden: Collection[int]) -> None:
        self._hidden = hidden  # tokens that are reported and not in the text
        self._table = service.tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0
        self._clear()

    def _clear(self) -> None:
        self._tokens: list[str] = []
        self._values: list[float | None] = []
        self._tops: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def prompt(self, ask: Ask, output: Output) -> None:
        found = output.prompt_logprobs
        if found is None:
            return
        tops: Iterable[TopPairs | None] = found.tops or [None] * len(found.logprobs)
        for token, value, top in zip(ask.prompt, found.logprobs, tops):
            self._add(token, value, top, True)

    def drawn(self, output: Output, which: range) -> None:
        for i in which:
            token, top = output.tokens[i], output.tops[i] if output.tops else []
            self._add(token, output.logprobs[i], top, token not in self._hidden)

    def _add(self, token: int, value: float | None, top: TopPairs | None, shown: bool) -> None:
        self._tokens.append(self._text(token))
        self._values.append(value)
        self._offsets.append(self._offset)
        self._offset += len(self._decoder.decode(self._bytes(token))) if shown else 0
        if value is None or top is None:
            self._tops.append(None)
            return
        entries = {self._text(other): logprob for other, logprob in reversed(top)}
        entries[self._text(token)] = value
        self._tops.append(entries)

    def _bytes(self, token: int) -> bytes:
        return self._table[token] if token < len(self._table) else b""

    def _text(self, token: int) -> str:
        """Text of one token; where it is a part of a character, its bytes in OpenAI's notation."""
        data = self._bytes(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)

    def value(self) -> dict[str, Any]:
        found = {
            "tokens": self._tokens,
            "token_logprobs": self._values,
            "top_logprobs": self._tops,
            "text_offset": self._offsets,
        }
        self._clear()
        return found
