"""Requests of ``/generate`` and of ``sglang.Engine.generate``: their fields and their reading."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import msgspec
from sglang.ir.declaration import Bounds
from sglang.ir.sampling import MAX_TOP_LOGPROBS
from sglang.srt.core.ints import Ints, ints
from sglang.srt.requests import common_fields as fields
from sglang.srt.requests.common_fields import NAME
from sglang.srt.requests.completion.completer import EngineLost
from sglang.srt.requests.completion.completion_request import (
    CompletionRequest,
    Logprobs,
    namespace_of,
    sampling_from,
)
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.completion.parallel_parts import read_parts
from sglang.srt.requests.media_input.sources import MediaSource, sources_of
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import Caller
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.hidden_states import verify_states
from sglang.srt.runtime.matched_prompt import matched
from sglang.srt.runtime.parking.kv_hints import KvHintsField
from sglang.srt.runtime.parking.resumable import ParkOptions, Run
from sglang.srt.runtime.prompt_progress import reporting
from sglang.srt.runtime.sessions import SessionParams


class GenerateRequest(msgspec.Struct, kw_only=True):
    """One prompt or a list of prompts. A field that is a list has one entry for each prompt.
    ``parts`` is one prompt: consecutive texts, and lists of texts that are encoded in parallel."""

    text: Annotated[
        str | list[str] | None, Bounds(words="a text or a list of texts"), "The prompt."
    ] = None
    input_ids: Annotated[
        list[Any] | None,
        Bounds(words="a list of token ids or of such lists"),
        "The prompt, in place of `text`.",
    ] = None
    parts: Annotated[
        list[str | list[str]] | None,
        Bounds(words="a list of texts and of lists of texts"),
        "One prompt, in place of `text`; the texts of an inner list are side by side.",
    ] = None
    options: Annotated[
        list[Any] | None,
        Bounds(words="a list of texts, or of lists of token ids"),
        "Texts that are scored after `text`: `meta_info.option_logprobs`. Nothing is generated.",
    ] = None
    output_ids: Annotated[
        list[Any] | None,
        Bounds(words="a list of token ids, or of such lists"),
        "Tokens that the text has already: the generation continues after them.",
    ] = None
    image_data: Annotated[Any, Bounds(words="images"), "One for each placeholder."] = None
    video_data: Annotated[Any, Bounds(words="videos"), "One for each placeholder."] = None
    sampling_params: Annotated[
        dict[str, Any] | list[dict[str, Any]] | None,
        Bounds(words="an object"),
        "How tokens are sampled, and when the text ends.",
    ] = None
    stream: fields.Stream | None = None
    incremental_streaming_output: Annotated[
        bool | None,
        None,
        "Each event has only the new part, not all so far; null: `--incremental-streaming-output`.",
    ] = None
    return_progress: fields.ReturnProgress | None = None
    return_logprob: Annotated[
        bool | list[bool] | None, None, "Log-probabilities of the generated tokens come too."
    ] = None
    logprob_start_len: Annotated[
        int | list[int] | None,
        None,
        "Index of the first token of the prompt whose log-probability comes; -1: of none.",
    ] = None
    top_logprobs_num: Annotated[
        int | list[int] | None,
        None,
        f"Most likely tokens at each position, beside its own; at most {MAX_TOP_LOGPROBS}.",
    ] = None
    token_ids_logprob: Annotated[
        list[Any] | None,
        Bounds(words=f"at most {fields.MAX_PROBES} token ids"),
        "Tokens whose log-probability comes at each position.",
    ] = None
    return_text_in_logprobs: Annotated[
        bool | None, None, "Log-probabilities have the texts of their tokens."
    ] = None
    masked_logprobs: fields.MaskedLogprobs | None = None
    return_hidden_states: Annotated[
        bool | list[bool] | None,
        None,
        "`meta_info.hidden_states`: the final hidden state of every token.",
    ] = None
    return_spans: Annotated[
        bool | None, None, "`meta_info.spans`: times of the stages of each completion."
    ] = None
    rid: fields.Rid | list[fields.Rid] | None = None
    priority: fields.Priority | None = None
    cache_salt: fields.CacheSalt | list[fields.CacheSalt | None] | None = None
    extra_key: fields.ExtraKey | list[fields.ExtraKey | None] | None = None
    lora_path: fields.LoraPath | list[fields.LoraPath | None] | None = None
    session_params: Annotated[
        SessionParams | None, Bounds(words="an object"), "The session of the request."
    ] = None
    park: Annotated[
        ParkOptions | None,
        Bounds(words="an object"),
        "Park the context at the end: the answer has a handle to resume it by.",
    ] = None
    resume: Annotated[
        str | None,
        NAME,
        "Handle of a parked context to continue; `text` or `input_ids` is appended to it.",
    ] = None
    idempotency_key: Annotated[
        str | None,
        NAME,
        "With `resume`: a repeated request with the same key gets the same answer again.",
    ] = None
    kv_hints: KvHintsField | None = None
    no_logs: Annotated[
        bool | None, None, "The log has no parameter and no text of this request."
    ] = None


_PROMPTS = ("text", "input_ids", "parts")
# Fields that are one value for all prompts, or a list with one for each.
_LISTED = (
    "sampling_params", "return_logprob", "logprob_start_len", "top_logprobs_num",
    "return_hidden_states", "rid", "cache_salt", "extra_key", "lora_path",
)  # fmt: skip


class GenerateCall(msgspec.Struct):
    """The prompts of one request as CompletionRequests, and the form of their answers.

    Attributes:
        single: one prompt, not in a list, and one completion.
        with_text: log-probabilities have the texts of their tokens.
        received: time.monotonic() of the request, if spans are wanted.
        states: for each prompt, whether hidden states are wanted.
        turn: wraps the run, to follow its outputs for a session or a parked context.
    """

    runtime: EngineRuntime
    caller: Caller
    requests: list[CompletionRequest]
    single: bool
    with_text: bool
    received: float | None
    states: Sequence[bool]
    turn: Callable[[Run], AsyncGenerator[tuple[int, Output], None]] | None = None

    def in_session(self, params: SessionParams) -> GenerateCall:
        """Return the call with the prompt that its session gives it. The call enters the session
        now, so the caller must run it without an await in between. Raises RequestError."""
        [request, *others] = self.requests
        parts = (request.segments, request.media, request.generated)
        more = any(parts) or request.score_choices or self.states[0]
        if others or not self.single or more:
            raise RequestError(
                "A request of a session is one prompt of text or ids with n = 1, without media, "
                "parts, choices_scoring, return_hidden_states and output_ids; send others without "
                "session_params.",
                "session_params",
            )
        turn = self.runtime.sessions.begin(params, request.rid, request.prompt, self.caller.tenant)
        follow, session = partial(self.runtime.sessions.follow, turn), f"session {params.id}"
        return msgspec.structs.replace(
            self, requests=[replace(request, prompt=turn.prompt, program=session)], turn=follow
        )

    def run(self) -> AsyncGenerator[tuple[int, Output], None]:
        """Yield the outputs of ``EngineRuntime.run``."""
        if self.turn is None:
            return self.runtime.run(self.requests, self.caller)
        return self.turn(partial(self.runtime.run, self.requests, self.caller))

    async def finish(self) -> list[list[Output]]:
        """Return the finished outputs of each prompt. Raises EngineLost if there is no output."""
        if self.turn is None:
            return await self.runtime.finish(self.requests, self.caller)
        last = None
        async with aclosing(self.run()) as items:  # tokens may be replaced until the end
            async for _, output in items:
                last = output
        if last is None:
            raise EngineLost("the engine ended a request without an answer")
        return [[last]]


async def read_call(runtime: EngineRuntime, body: GenerateRequest, caller: Caller) -> GenerateCall:
    """Return a body as a call. Raises RequestError."""
    received = time.monotonic() if body.return_spans else None
    prompts, listed = _prompts(body)
    count = len(prompts)
    runtime.admit(count, caller)
    each = partial(_each, body, count)
    rids, settings = each("rid", ""), each("sampling_params", {})
    wanted = each("return_logprob", False)
    logprobs = logprobs_of(body, count)
    given = await _given(runtime, body, count)
    salts, keys, paths = each("cache_salt"), each("extra_key"), each("lora_path")
    images = _sources(body, "image", count)
    videos = _sources(body, "video", count)
    requests = []
    for i, prompt in enumerate(prompts):
        sampling = sampling_from(settings[i])
        request = CompletionRequest(
            ints(),
            sampling,
            logprobs[i] if wanted[i] else None,
            rids[i] or uuid.uuid4().hex,
            body.priority or 0,
            namespace_of(salts[i], keys[i]),
            score_choices=settings[i].get("choices_scoring") == "whole",
            adapter=runtime.adapters.of(lora_path=paths[i]) if paths[i] else "",
            generated=given[i],
        )
        seen = bool(images or videos or body.session_params)
        request = await _read(runtime, body, prompt, request, None if seen else caller)
        if images or videos or runtime.viewer is not None:  # a viewer refuses stray placeholders
            request = await _with_media(
                runtime, request, images[i] if images else [], videos[i] if videos else [], caller
            )
        requests.append(reporting(request) if body.return_progress else request)
    single = not listed and requests[0].sampling.n == 1
    states = each("return_hidden_states", False)
    with_text = bool(body.return_text_in_logprobs)
    call = GenerateCall(runtime, caller, requests, single, with_text, received, states)
    if any(states):
        verify_states(runtime, [request for request, wanted in zip(requests, states) if wanted])
    params = body.session_params
    return call if params is None else call.in_session(params)


def unlisted(body: GenerateRequest) -> GenerateRequest:
    """Return a request of one prompt, with the entry of each list field in place of the list.
    Raises RequestError if a list does not have exactly one entry."""
    changes = {}
    for name in _LISTED:
        if isinstance(getattr(body, name), list):
            [changes[name]] = _each(body, 1, name)
    return msgspec.structs.replace(body, **changes) if changes else body


def logprobs_of(body: GenerateRequest, count: int) -> list[Logprobs]:
    """Return the settings of log-probabilities of each of ``count`` prompts, for prompts that want
    any. Raises RequestError."""
    starts = _each(body, count, "logprob_start_len", -1)
    tops = _each(body, count, "top_logprobs_num", 0)
    probes, masked = _probes(body.token_ids_logprob, count), bool(body.masked_logprobs)
    return [
        Logprobs(top=tops[i], start=starts[i], probe=probes[i], masked=masked) for i in range(count)
    ]


def _sources(body: GenerateRequest, kind: str, count: int) -> list[list[MediaSource]]:
    """Return the images or videos of each prompt; [] if the request has none."""
    value = getattr(body, f"{kind}_data")
    return [] if value is None else sources_of(kind, value, count, f"{kind}_data")


def _prompts(body: GenerateRequest) -> tuple[list[Any], bool]:
    """Return the prompts, and whether the request gave a list of them."""
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


async def _read(
    runtime: EngineRuntime,
    body: GenerateRequest,
    prompt: Any,
    request: CompletionRequest,
    caller: Caller | None,
) -> CompletionRequest:
    """Return the request with its prompt. The prompt may continue a parked context of ``caller``,
    unless that is None or log-probabilities of the prompt are wanted. Raises RequestError."""
    if body.parts is not None:
        ids, segments = await read_parts(runtime.completion, prompt)
        return replace(request, prompt=ids, segments=segments)
    scored = request.logprobs is not None and request.logprobs.start >= 0
    if caller is not None and isinstance(prompt, str) and not scored:
        scope = runtime.scope(caller, request.namespace, request.adapter)
        found = await matched(runtime, scope, prompt, special=True)
        if found is not None:
            return replace(request, prompt=found.tokens, resumed=found.resumed)
    field = "text" if body.text is not None else "input_ids"
    return replace(request, prompt=await runtime.prompt(prompt, field))


async def _with_media(
    runtime: EngineRuntime,
    request: CompletionRequest,
    images: list[MediaSource],
    videos: list[MediaSource],
    caller: Caller,
) -> CompletionRequest:
    """Return the request with images and videos at their placeholders. Raises RequestError."""
    field = "video_data" if videos and not images else "image_data"
    sources, owner = [*images, *videos], caller.tenant
    seen = await runtime.see(request.prompt, sources, request.segments, field, owner=owner)
    return replace(request, prompt=seen.tokens, segments=seen.segments, media=seen.media)


def _each(body: GenerateRequest, count: int, name: str, default: Any = None) -> list[Any]:
    """Return one value for each prompt, of a field that has a list or one value for all prompts."""
    value = getattr(body, name)
    if not isinstance(value, list):
        return [default if value is None else value] * count
    _verify_count(value, count, name)
    return value


def _verify_count(value: list[Any], count: int, name: str) -> None:
    if len(value) != count:
        raise RequestError(f"{name} has {len(value)} entries for {count} prompts.", name)


async def _given(runtime: EngineRuntime, body: GenerateRequest, count: int) -> list[Ints]:
    """Return the tokens that each completion has already (``output_ids``). Raises RequestError."""
    value = body.output_ids
    if not value:
        return [ints()] * count
    rows = value if isinstance(value[0], list) else [value]
    _verify_count(rows, count, "output_ids")
    for row in rows:
        if not isinstance(row, list):
            raise RequestError("output_ids has no list of token ids for each prompt.", "output_ids")
    return [await runtime.prompt(row, "output_ids") for row in rows]


def _probes(value: list[Any] | None, count: int) -> list[tuple[int, ...]]:
    rows = value if value and isinstance(value[0], list) else [value or []] * count
    _verify_count(rows, count, "token_ids_logprob")
    for row in rows:
        if not isinstance(row, list) or not set(map(type, row)) <= {int}:
            raise RequestError("token_ids_logprob must hold token ids.", "token_ids_logprob")
    return [tuple(row) for row in rows]
