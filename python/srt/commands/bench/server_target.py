"""Endpoint: a server over HTTP, by one of three protocols.

sglang         POST /generate             ids or text, answers with ids
openai         POST /v1/completions       ids or text, answers with text, and ids where they come
openai-chat    POST /v1/chat/completions  text only
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from sglang.srt.commands.bench.load_client import Http, HttpError
from sglang.srt.commands.bench.result import BenchCall, Result
from sglang.srt.commands.bench.sse import EventParser
from sglang.srt.commands.bench.target import Target, numbers


@dataclass(frozen=True)
class Asking:
    """Settings of the requests. Sampling is greedy, so that answers can be compared.

    Attributes:
        model: name sent to OpenAI-compatible servers; empty: the first that /v1/models lists.
        as_text: send words instead of ids.
        ignore_eos: generate exactly as many tokens as requested; most engines know this extension.
        extra: further fields of every request's body.
    """

    model: str = ""
    as_text: bool = False
    ignore_eos: bool = True
    extra: dict[str, Any] = field(default_factory=dict)


class Endpoint(Target):
    """A server that is benchmarked over HTTP. Raises ValueError for an unknown ``backend`` or a bad
    URL."""

    def __init__(self, backend: str, base_url: str, asking: Asking, api_key: str = "") -> None:
        if backend not in PROTOCOLS:
            raise ValueError(f"--backend is {backend!r}; use one of {tuple(PROTOCOLS)}")
        self.name = f"{backend}@{base_url.split('//')[-1]}"
        self._path, self._body, self._read = PROTOCOLS[backend]
        self._native = backend == "sglang"
        self._asking, self._model = asking, asking.model
        self._http = Http(base_url, api_key)

    async def start(self) -> None:
        """Request the model's name, to see that the server answers. Raises HttpError where it does
        not."""
        if self._native:
            await self._http.json("GET", "/get_model_info")
        elif not self._model:
            listed = await self._http.json("GET", "/v1/models")
            self._model = listed["data"][0]["id"]

    async def answer(self, call: BenchCall, result: Result) -> None:
        body = self._body(call, self._asking, self._model)
        body.update(self._asking.extra)
        parser = EventParser()
        ended = False
        try:
            async with aclosing(self._http.stream("POST", self._path, body)) as chunks:
                async for chunk in chunks:
                    now = perf_counter()
                    for data in parser.push(chunk):
                        ended = ended or data == b"[DONE]"
                        if data != b"[DONE]" and self._read(json.loads(data), result):
                            result.arrived(now)
        except (HttpError, ValueError, KeyError) as error:
            result.error = result.error or f"{type(error).__name__}: {error}"
        if not ended and not result.error:
            result.error = "the stream ended without [DONE]"

    async def flush(self) -> None:
        """Empty the prefix cache. Raises HttpError where the server has no /flush_cache or is
        busy."""
        await self._http.json("POST", "/flush_cache")

    async def counters(self) -> dict[str, float]:
        try:
            return numbers(await self._http.json("GET", "/get_server_info"))
        except HttpError:
            return {}

    async def close(self) -> None:
        await self._http.close()


def _native_body(call: BenchCall, asking: Asking, model: str) -> dict[str, Any]:
    sampling = {"max_new_tokens": call.output, "temperature": 0, "ignore_eos": asking.ignore_eos}
    prompt = {"text": call.text} if asking.as_text else {"input_ids": call.tokens}
    return {**prompt, "sampling_params": sampling, "stream": True}


def read_native(event: dict[str, Any], result: Result) -> bool:
    """Take one event of /generate, whose text and ids are cumulative. True if it has new tokens."""
    if "error" in event:
        result.error = str(event["error"])
        return False
    meta = event["meta_info"]
    before = result.output_tokens
    result.text = event.get("text", result.text)
    result.ids = tuple(event.get("output_ids") or result.ids)
    result.output_tokens = meta["completion_tokens"]
    result.prompt_tokens = meta["prompt_tokens"]
    if meta.get("cached_tokens") is not None:
        result.cached = meta["cached_tokens"]
    finish = meta.get("finish_reason")
    if finish:
        result.finish = finish["type"]
        if finish["type"] == "abort":
            result.error = f"aborted: {finish.get('message')}"
    return bool(result.output_tokens > before)


def _openai_body(call: BenchCall, asking: Asking, model: str) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "max_tokens": call.output,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if asking.ignore_eos:
        body["ignore_eos"] = True
    return body


def _completions_body(call: BenchCall, asking: Asking, model: str) -> dict[str, Any]:
    prompt = call.text if asking.as_text else call.tokens
    return {"prompt": prompt, **_openai_body(call, asking, model)}


def _chat_body(call: BenchCall, asking: Asking, model: str) -> dict[str, Any]:
    messages = [{"role": part.role, "content": part.text} for part in call.parts]
    return {"messages": messages, **_openai_body(call, asking, model)}


def read_openai(event: dict[str, Any], result: Result) -> bool:
    """Take one chunk of either /v1 route. True if it has new text."""
    if "error" in event:
        error = event["error"]
        result.error = str(error.get("message", error) if isinstance(error, dict) else error)
        return False
    usage = event.get("usage")
    if usage:
        result.prompt_tokens = usage["prompt_tokens"]
        result.output_tokens = usage["completion_tokens"]
        details = usage.get("prompt_tokens_details") or {}
        if details.get("cached_tokens") is not None:
            result.cached = details["cached_tokens"]
    new = False
    for choice in event.get("choices") or ():
        text = choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        ids = choice.get("token_ids") or ()  # where return_token_ids was sent
        result.text += text
        result.ids += tuple(ids)
        result.finish = choice.get("finish_reason") or result.finish
        new = new or bool(text or ids)
    return new


Body = Callable[[BenchCall, Asking, str], dict[str, Any]]
Read = Callable[[dict[str, Any], Result], bool]

PROTOCOLS: dict[str, tuple[str, Body, Read]] = {
    "sglang": ("/generate", _native_body, read_native),
    "openai": ("/v1/completions", _completions_body, read_openai),
    "openai-chat": ("/v1/chat/completions", _chat_body, read_openai),
}
