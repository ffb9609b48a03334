"""POST /generate: the native route. A stream is cumulative, or a sequence of deltas.

A cumulative event holds all of the completion so far, so sending one with each token would cost
the square of its length. The longer the events, the further apart they are: ``TOKEN_BYTES``."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any

import msgspec
from sglang.srt.core.ints import Ints, ints
from sglang.srt.core.request_stats import RequestCounts
from sglang.srt.core.segments import Segments
from sglang.srt.http.exchange.error_replies import json_response
from sglang.srt.http.exchange.event_stream import respond, unless_gone
from sglang.srt.http.exchange.json_body import read_body
from sglang.srt.http.native.generate_call import GenerateCall
from sglang.srt.http.native.hidden_states import states_of, verify_states
from sglang.srt.http.service import Service
from sglang.srt.http.telemetry.request_record import record
from sglang.srt.program.ask import Ask, Logprobs, namespace_of, sampling_from
from sglang.srt.program.output import Output, PromptLogprobs
from sglang.srt.program.parallel_parts import read_parts
from sglang.srt.program.request_error import RequestError
from sglang.srt.program.sources import sources_of
from sglang.srt.runtime.sessions import SessionParams
from starlette.requests import Request
from starlette.responses import Response

TOKEN_BYTES = 16 << 10  # of cumulative events, for each token that is generated
ENTRY_BYTES = 32  # of one log-probability with its token id in JSON, about
ID_BYTES = 8  # of a token id

Triple = tuple[float | None, int, str | None]
Triples = list[Triple]


class GenerateBody(msgspec.Struct, kw_only=True):
    """One prompt or a list of them; a list field has one entry a prompt. ``parts`` is one prompt:
    texts that follow each other, and lists of texts that are encoded side by side."""

    text: str | list[str] | None = None
    input_ids: list[Any] | None = None
    parts: list[str | list[str]] | None = None
    sampling_params: dict[str, Any] | list[dict[str, Any]] | None = None
    rid: str | list[str] | None = None
    return_logprob: bool | list[bool] | None = None
    logprob_start_len: int | list[int] | None = None
    top_logprobs_num: int | list[int] | None = None
    token_ids_logprob: list[Any] | None = None
    return_text_in_logprobs: bool | None = None
    masked_logprobs: bool | None = None
    return_spans: bool | None = None
    stream: bool | None = None
    incremental_streaming_output: bool | None = None
    priority: int | None = None
    cache_salt: str | list[str | None] | None = None
    extra_key: str | list[str | None] | None = None
    image_data: Any = None
    video_data: Any = None
    lora_path: str | list[str | None] | None = None
    session_params: SessionParams | None = None
    return_hidden_states: bool | list[bool] | None = None
    no_logs: bool | None = None


_PROMPTS = ("text", "input_ids", "parts")


async def generate(service: Service, request: Request) -> Response:
    body = await read_body(request, GenerateBody, service.body_limit)
    if body.stream:
        return await respond(request, events(service, body))
    return json_response(await unless_gone(request, answer(service, body)))


async def answer(service: Service, body: GenerateBody) -> dict[str, Any] | list[dict[str, Any]]:
    """What the route answers, as plain data: the offline engine answers the same.

    Raises RequestError, and EngineLost where the engine died.
    """
    asked = await _asks(service, body)
    results = await asked.finish(service)
    found = []
    for ask, outputs, states in zip(asked.asks, results, asked.states):
        for output in outputs:
            shown = _show(ask, output, asked.received)
            if ask.logprobs is not None:
                writer = _Logprobs(service, ask, ask.logprobs, asked.with_text)
                shown["meta_info"].update({**writer.input(output), **writer.output(output)})
            if states:
                shown["meta_info"]["hidden_states"] = await states_of(service, ask, output)
            found.append(shown)
    return found[0] if asked.single else found


async def events(service: Service, body: GenerateBody) -> AsyncGenerator[dict[str, Any], None]:
    """Stream the events of the route, as plain data. The prompt's log-probabilities come with the
    first item of a completion, and with the last one of a cumulative stream. Raises as ``answer``
    does.
    """
    incremental = _incremental(service, body)
    asked = await _asks(service, body)
    interval = service.config.server.stream_interval
    streamed: dict[int, _Streamed] = {}
    ended: list[tuple[Ask, Output, dict[str, Any]]] = []
    offsets = [0]
    for ask in asked.asks:
        offsets.append(offsets[-1] + ask.sampling.n)
    async with aclosing(asked.run(service)) as items:
        async for index, output in items:
            place, ask = offsets[index] + output.index, asked.asks[index]
            if place not in streamed:
                writer = None
                if ask.logprobs is not None:
                    writer = _Logprobs(service, ask, ask.logprobs, asked.with_text)
                streamed[place] = _Streamed(ask, incremental, writer)
            if not streamed[place].is_due(output, interval):
                continue
            shown = streamed[place].show(output, asked.received)
            item = shown if asked.single else {**shown, "index": place}
            if asked.states[index] and output.finish is not None:
                ended.append((ask, output, item))
            else:
                yield item
    for ask, output, item in ended:  # behind all others: a reading is a request of its own
        item["meta_info"]["hidden_states"] = await states_of(service, ask, output)
        yield item


def _incremental(service: Service, body: GenerateBody) -> bool:
    """Whether a stream is one of deltas. Raises RequestError."""
    wanted = body.incremental_streaming_output
    if wanted is None:
        wanted = service.config.server.incremental_streaming_output
    if wanted and service.config.grammar.jumps == "string":
        raise RequestError(
            "incremental_streaming_output is true, and this server runs with --jump-forward "
            "string, which replaces tokens that were sent; set it to false.",
            "incremental_streaming_output",
            "unsupported",
        )
    return wanted


class _Streamed:
    """The streamed part of one completion."""

    def __init__(self, ask: Ask, incremental: bool, writer: _Logprobs | None) -> None:
        self._ask, self._incremental, self._writer = ask, incremental, writer
        self._tokens = self._chars = 0
        self._begun = False
        entries = 0 if ask.logprobs is None else 1 + ask.logprobs.top + len(ask.logprobs.probe)
        self._token_bytes = ID_BYTES + ENTRY_BYTES * entries

    def is_due(self, output: Output, interval: int) -> bool:
        """Whether it is time for an event, one in ``interval`` tokens where events are short."""
        if output.finish is not None:
            return True
        if not self._incremental:
            size = len(output.text) + self._token_bytes * output.completion_tokens
            interval = max(interval, size // TOKEN_BYTES)
        return output.completion_tokens - self._tokens >= interval

    def show(self, output: Output, received: float | None) -> dict[str, Any]:
        """The next event: all of the completion, or what is new of it."""
        shown = _show(self._ask, output, received)
        first, last = not self._begun, output.finish is not None
        if self._writer is not None:
            if first or (last and not self._incremental):
                shown["meta_info"].update(self._writer.input(output))
            shown["meta_info"].update(self._writer.output(output, self._incremental))
        if self._incremental:
            shown["text"] = output.text[self._chars :]
            shown["output_ids"] = output.tokens[self._tokens :]
        self._begun, self._tokens, self._chars = True, len(output.tokens), len(output.text)
        return shown


async def _asks(service: Service, body: GenerateBody) -> GenerateCall:
    received = time.monotonic() if body.return_spans else None
    record().private = bool(body.no_logs)
    prompts, listed = _prompts(body)
    service.admit(len(prompts))
    count = len(prompts)
    settings = _each(body.sampling_params, count, "sampling_params", {})
    rids = _each(body.rid, count, "rid", "")
    wanted = _each(body.return_logprob, count, "return_logprob", False)
    starts = _each(body.logprob_start_len, count, "logprob_start_len", -1)
    tops = _each(body.top_logprobs_num, count, "top_logprobs_num", 0)
    probes = _probes(body.token_ids_logprob, count)
    paths = _each(body.lora_path, count, "lora_path", None)
    adapters = [service.adapters.of(lora_path=path) for path in paths]
    salts = _each(body.cache_salt, count, "cache_salt", None)
    keys = _each(body.extra_key, count, "extra_key", None)
    images = sources_of("image", body.image_data, count, "image_data")
    videos = sources_of("video", body.video_data, count, "video_data")
    asks = []
    for i, prompt in enumerate(prompts):
        rid = rids[i] or uuid.uuid4().hex
        sampling = sampling_from(settings[i])
        logprobs = None
        if wanted[i]:
            masked = bool(body.masked_logprobs)
            logprobs = Logprobs(top=tops[i], start=starts[i], probe=probes[i], masked=masked)
        ids, segments = await _read(service, body, prompt)
        field = "video_data" if videos[i] and not images[i] else "image_data"
        seen = await service.see(ids, [*images[i], *videos[i]], segments, field)
        salt = namespace_of(salts[i], keys[i])
        whole = settings[i].get("choices_scoring") == "whole"
        asks.append(
            Ask(seen.tokens, sampling, logprobs, rid, body.priority or 0, salt, seen.segments,
                whole, media=seen.media, adapter=adapters[i])
        )  # fmt: skip
    single = not listed and asks[0].sampling.n == 1
    states = _each(body.return_hidden_states, count, "return_hidden_states", False)
    asked = GenerateCall(asks, single, bool(body.return_text_in_logprobs), received, states)
    verify_states(service, [ask for ask, wanted in zip(asks, states) if wanted])
    params = body.session_params
    return asked if params is None else asked.in_session(service, params)


def _prompts(body: GenerateBody) -> tuple[list[Any], bool]:
    """The prompts and whether they came as a list."""
    given = [name for name in _PROMPTS if getattr(body, name) is not None]
    if len(given) != 1:
        raise RequestError("Give one of text, input_ids and parts.", "text")
    if body.parts is not None:
        return [body.parts], False
    if body.text is not None:
        listed = isinstance(body.text, list)
        prompts: list[Any] = body.text if isinstance(body.text, list) else [body.text]
    else:
        found = body.input_ids or []
        listed = bool(found) and isinstance(found[0], list)
        prompts = found if listed else [found]
    if not prompts:
        raise RequestError("The list of prompts is empty.", "text")
    return prompts, listed


async def _read(service: Service, body: GenerateBody, prompt: Any) -> tuple[Ints, Segments]:
    """Token ids and segments of one prompt. Raises RequestError."""
    if body.parts is not None:
        return await read_parts(service.completion, prompt)
    return await service.prompt(prompt, "text" if body.text is not None else "input_ids"), ()


def _each(value: Any, count: int, name: str, default: Any) -> list[Any]:
    """One entry a prompt of a field that may be given once for all."""
    if not isinstance(value, list):
        return [default if value is None else value] * count
    if len(value) != count:
        raise RequestError(f"{name} has {len(value)} entries for {count} prompts.", name)
    return value


def _probes(value: list[Any] | None, count: int) -> list[tuple[int, ...]]:
    rows = value if value and isinstance(value[0], list) else [value or []] * count
    rows = _each(rows, count, "token_ids_logprob", [])
    for row in rows:
        if not isinstance(row, list) or not set(map(type, row)) <= {int}:
            raise RequestError("token_ids_logprob must hold token ids.", "token_ids_logprob")
    return [tuple(row) for row in rows]


def _show(ask: Ask, output: Output, received: float | None = None) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": ask.rid if ask.sampling.n == 1 else f"{ask.rid}-{output.index}",
        "finish_reason": finish_reason(output),
        **{name: getattr(output.stats, name) for name in RequestCounts.__struct_fields__},
        "completion_tokens": output.completion_tokens,
        "e2e_latency": output.seconds,
    }
    if output.choice_logprobs:
        meta["choice_logprobs"] = output.choice_logprobs
    if received is not None and output.finish is not None:
        meta["spans"] = _spans(output, received)
    return {"text": output.text, "output_ids": list(output.tokens), "meta_info": meta}


def _spans(output: Output, received: float) -> dict[str, Any]:
    """When a completion was where, in seconds since its request was received. They never go
    backwards: its times are those of two processes, each measured from its own beginning."""
    submitted = max(output.started - received, 0.0)
    end = submitted + output.seconds
    scheduled = min(submitted + output.stats.queue_seconds, end)
    first = output.stats.first_token_seconds or None
    if first is not None:
        first = min(max(submitted + first, scheduled), end)
    return {"submitted": submitted, "scheduled": scheduled, "first_token": first, "end": end,
            "retractions": output.stats.retractions}  # fmt: skip


def finish_reason(output: Output) -> dict[str, Any] | None:
    if output.finish is None:
        return None
    if output.finish.reason == "stop":
        return {"type": "stop", "matched": output.finish.matched}
    if output.finish.reason == "length":
        return {"type": "length", "length": output.completion_tokens}
    if output.finish.reason == "error":
        return {"type": "error", "message": output.finish.message}
    return {"type": "abort", "message": "The request was aborted."}


class _Logprobs:
    """The log-probability fields of one completion. Each generated token is written once, however
    often a stream shows it."""

    def __init__(self, service: Service, ask: Ask, wanted: Logprobs, with_text: bool) -> None:
        self._decode = service.tokenizer.decode if with_text else None
        self._ask, self._wanted = ask, wanted
        self._read = 0  # tokens before those in ``_tokens``
        self._tokens: Triples = []
        self._tops: list[Triples] = []
        self._probes: list[Triples] = []

    def input(self, output: Output) -> dict[str, Any]:
        """Of the prompt. The first entry has no value, by this route's custom, wherever the report
        begins."""
        prompt = output.prompt_logprobs or PromptLogprobs()
        given = self._ask.prompt[prompt.start :] if prompt.logprobs else ints()
        values = [None, *prompt.logprobs[1:]] if prompt.logprobs else []
        found: dict[str, Any] = {"input_token_logprobs": self._triples(zip(given, values))}
        if self._wanted.top:
            tops = [self._triples(pairs or ()) for pairs in prompt.tops[1:]]
            found["input_top_logprobs"] = [None, *tops] if prompt.tops else []
        if self._wanted.probe:
            probes = [self._probed(row or ()) for row in prompt.probes[1:]]
            found["input_token_ids_logprobs"] = [None, *probes] if prompt.probes else []
        return found

    def output(self, output: Output, fresh: bool = False) -> dict[str, Any]:
        """Fields of all generated tokens, or of those alone that are new since the last call."""
        if fresh:
            self._read = self._read + len(self._tokens)
            self._tokens, self._tops, self._probes = [], [], []
        new = slice(self._read + len(self._tokens), None)
        self._tokens += self._triples(zip(output.tokens[new], output.logprobs[new]))
        self._tops += [self._triples(pairs) for pairs in output.tops[new]]
        self._probes += [self._probed(row) for row in output.probes[new]]
        found: dict[str, Any] = {"output_token_logprobs": self._tokens[:]}
        if self._wanted.top:
            found["output_top_logprobs"] = self._tops[:]
        if self._wanted.probe:
            found["output_token_ids_logprobs"] = self._probes[:]
        return found

    def _probed(self, row: Iterable[float]) -> Triples:
        """An id that the constraint does not allow has no value, where that counts."""
        values = (None if value == -math.inf else value for value in row)
        return self._triples(zip(self._wanted.probe, values))

    def _triples(self, pairs: Iterable[tuple[int, float | None]]) -> Triples:
        if self._decode is None:
            return [(value, token, None) for token, value in pairs]
        return [(value, token, self._decode([token])) for token, value in pairs]
