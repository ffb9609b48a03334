"""Requests of ``/generate`` that park their context, or resume a parked one."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

import msgspec
from sglang.srt.core.ints import Ints, ints
from sglang.srt.requests.common_fields import verify_fields
from sglang.srt.requests.completion.completion_request import (
    RENAMED,
    CompletionRequest,
    sampling_from,
)
from sglang.srt.requests.completion.constraint_settings import NAMES as CONSTRAINT_NAMES
from sglang.srt.requests.completion.held_context import Resumption
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import Caller
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.generate_request import (
    GenerateCall,
    GenerateRequest,
    logprobs_of,
    unlisted,
)
from sglang.srt.runtime.generate_request import read_call as read_new
from sglang.srt.runtime.matched_prompt import framed_text
from sglang.srt.runtime.option_scoring import read_options
from sglang.srt.runtime.parking.kv_hints import HintedTurn, KvHints
from sglang.srt.runtime.parking.resumable import (
    Handle,
    Outputs,
    ParkedTurn,
    ParkOptions,
    PausedGeneration,
    Run,
    SharedWork,
)
from sglang.srt.runtime.parking.text_index import ContextText, bytes_of

# Fields that a resuming request may not have, because the parked context determines their values.
_KEPT = ("lora_path", "cache_salt", "extra_key")
_ALONE = (
    "parts", "image_data", "video_data", "session_params", "return_hidden_states", "output_ids",
)  # fmt: skip
# Fields that decide the answer: requests with the same idempotency key must agree in them.
_DECIDING = (
    "text", "input_ids", "sampling_params", "park", "return_logprob", "logprob_start_len",
    "top_logprobs_num", "token_ids_logprob", "masked_logprobs",
)  # fmt: skip


async def read_call(runtime: EngineRuntime, body: GenerateRequest, caller: Caller) -> GenerateCall:
    """Return a body as a call. This reserves the room of a context to park, and takes the handle to
    resume. So the caller must run the call without an await in between. Raises RequestError."""
    if body.options is not None:
        return await read_options(runtime, body, caller)
    if body.park is not None:
        names = {name: f"park.{name}" for name in ParkOptions.__struct_fields__}
        verify_fields(body.park, names)
    if body.kv_hints is not None:
        body.kv_hints.verify()
    if body.resume is not None:
        return await _read_resumed(runtime, body, body.resume, caller)
    if body.idempotency_key is not None:
        raise RequestError(
            "idempotency_key is given without resume; leave it out.", "idempotency_key"
        )
    if body.park is not None and body.session_params is not None:
        raise _refused("session_params")  # before ``read_new`` adds the request to its session
    call = await read_new(runtime, body, caller)
    call = call if body.park is None else _parked(call, body, body.park)
    return call if body.kv_hints is None else _hinted(call, body, body.kv_hints)


def _hinted(call: GenerateCall, body: GenerateRequest, hints: KvHints) -> GenerateCall:
    """Return the call with hints that are answered when it ends. Raises RequestError if the call
    generates several texts."""
    if not call.single:
        raise RequestError(
            "kv_hints is given with several prompts, or n above 1; give it with one prompt.",
            "kv_hints",
            "unsupported",
        )
    request = call.requests[0]
    if call.turn is not None:
        refusal = "park, resume and session_params keep the context themselves"
    elif request.media or request.segments or call.states[0]:
        refusal = "contexts with parts, images, videos or hidden states are not kept"
    elif request.sampling.max_new_tokens == 0:
        refusal = "a request that generates nothing is not kept"
    else:
        refusal = ""
    runtime = call.runtime
    scope = runtime.scope(call.caller, request.namespace, request.adapter)
    text = ContextText() if refusal else _text_of(runtime, body, request)
    table = runtime.tokenizer.token_bytes
    turn = HintedTurn(runtime.parked, table, request, scope, hints, text, refusal)
    before = call.turn

    def follow(run: Run) -> Outputs:
        return turn.follow(run if before is None else partial(before, run))

    return msgspec.structs.replace(call, turn=follow)


def _text_of(
    runtime: EngineRuntime, body: GenerateRequest, request: CompletionRequest
) -> ContextText:
    """Return the text of a prompt that was given as one text or as token ids."""
    if isinstance(body.text, str):
        framed = framed_text(runtime.tokenizer, body.text)
        return ContextText(framed.encode("utf-8", "surrogatepass"))
    return ContextText(bytes_of(runtime.tokenizer.token_bytes, request.prompt))


def _parked(call: GenerateCall, body: GenerateRequest, options: ParkOptions) -> GenerateCall:
    """Return the call with its context to be parked when it ends. Raises RequestError."""
    runtime, [request, *others] = call.runtime, call.requests
    if others or not call.single:
        raise _refused("several prompts, or n above 1")
    _verify_parkable(request, call.states[0])
    resumed, settings = request.resumed, body.sampling_params or {}
    generation = PausedGeneration(
        settings[0] if isinstance(settings, list) else settings,
        len(request.prompt),
        runtime.parked.now() if resumed is None else resumed.arrived,
        _text_of(runtime, body, request),
    )
    scope = runtime.scope(call.caller, request.namespace, request.adapter)
    turn = ParkedTurn(runtime.handles, request, scope, generation, options)
    turn.begin()
    return msgspec.structs.replace(call, turn=turn.follow)


def _verify_parkable(request: CompletionRequest, states: bool) -> None:
    if request.segments or request.media or request.score_choices or states:
        raise _refused("parts, images or videos, choices_scoring, or return_hidden_states")
    if request.sampling.max_new_tokens == 0:
        raise _refused("max_new_tokens of 0, which generates nothing")


def _refused(what: str) -> RequestError:
    return RequestError(
        f"park is given with {what}; a request that is parked has one prompt of text or ids, and "
        "generates one text.",
        "park",
        "unsupported",
    )


async def _read_resumed(
    runtime: EngineRuntime, body: GenerateRequest, name: str, caller: Caller
) -> GenerateCall:
    received = time.monotonic() if body.return_spans else None
    handle = runtime.handles.find(name, caller.tenant)
    body = unlisted(body)
    _verify_resumed(body)
    runtime.admit(1, caller)
    key, digest = body.idempotency_key or "", _digest(body)
    work = handle.answered(key, digest)
    if work is None:
        behind = await _behind(runtime, body)
        handle = runtime.handles.find(name, caller.tenant)  # a second look, after the await
        work = handle.answered(key, digest)
    call = GenerateCall(
        runtime, caller, [], True, bool(body.return_text_in_logprobs), received, [False]
    )
    if work is not None:
        call = msgspec.structs.replace(call, requests=[work.request], turn=work.follow)
        return call if body.kv_hints is None else _hinted(call, body, body.kv_hints)
    turn = _turn(runtime, body, handle, behind, caller)
    turn.begin()
    request, follow = turn.request, turn.follow
    if key:
        request = request if body.stream else request.unread()
        run = partial(runtime.run, [request], caller)
        handle.key, handle.body = key, digest
        handle.work = SharedWork(request, turn.follow(run), caller.slot)
        follow = handle.work.follow
    call = msgspec.structs.replace(call, requests=[request], turn=follow)
    return call if body.kv_hints is None else _hinted(call, body, body.kv_hints)


def _turn(
    runtime: EngineRuntime, body: GenerateRequest, handle: Handle, behind: Ints, caller: Caller
) -> ParkedTurn:
    """Return the request that resumes a waiting handle, with the tokens ``behind`` after its
    context. Raises RequestError."""
    context, before = handle.context, handle.generation
    assert context is not None
    scope = context.scope
    if scope.adapter:
        runtime.adapters.of(lora_path=scope.adapter)  # raises if unloaded, or not restored yet
    given = body.sampling_params or {}
    settings, fresh = laid_over(before.settings, given if isinstance(given, dict) else {})
    prompt = context.tokens + behind
    since = len(prompt) if fresh else before.since
    request = CompletionRequest(
        prompt,
        sampling_from(settings),
        logprobs_of(body, 1)[0] if body.return_logprob else None,
        str(body.rid) if body.rid else uuid.uuid4().hex,
        body.priority or 0,
        scope.namespace.removeprefix(caller.namespace),
        score_choices=settings.get("choices_scoring") == "whole",
        adapter=scope.adapter,
        resumed=Resumption(
            context.number, len(context.tokens), before.arrived, -1 if fresh else since,
            context.held,
        ),
    )  # fmt: skip
    _verify_one(request)
    table = runtime.tokenizer.token_bytes
    text = body.text if isinstance(body.text, str) else None
    more = bytes_of(table, behind) if text is None else text.encode("utf-8", "surrogatepass")
    generation = replace(before, settings=settings, since=since, text=before.text.grown(more))
    return ParkedTurn(runtime.handles, request, scope, generation, body.park, handle)


def _verify_one(request: CompletionRequest) -> None:
    one = request.sampling.n == 1 and not request.score_choices
    if not one or request.sampling.max_new_tokens == 0:
        raise RequestError(
            "resume continues one text: n must be 1, max_new_tokens at least 1, and "
            "choices_scoring cannot be whole.",
            "resume",
            "unsupported",
        )


def laid_over(before: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """Return a generation's sampling parameters, overridden by those ``given`` at its resumption,
    and whether they begin a new generation. A given seed or constraint, even null, begins a new
    one. A given constraint replaces the earlier one."""
    old = {RENAMED.get(name, name): value for name, value in before.items()}
    new = {RENAMED.get(name, name): value for name, value in given.items()}
    constrained = not new.keys().isdisjoint(CONSTRAINT_NAMES)
    if constrained:
        old = {name: value for name, value in old.items() if name not in CONSTRAINT_NAMES}
    return {**old, **new}, constrained or "seed" in new


def _verify_resumed(body: GenerateRequest) -> None:
    for name in _KEPT:
        if getattr(body, name) is not None:
            raise RequestError(
                f"{name} is given with resume; the parked context's own is kept, leave it out.",
                name,
            )
    for name in _ALONE:
        if getattr(body, name):
            raise RequestError(
                f"{name} is given with resume, which takes text or input_ids alone.", name
            )
    if body.text is not None and body.input_ids is not None:
        raise RequestError("Give text or input_ids with resume, not both.", "text")
    if not isinstance(body.text, str | None):
        raise RequestError("resume continues one text; give no lists.", "resume", "unsupported")


async def _behind(runtime: EngineRuntime, body: GenerateRequest) -> Ints:
    """Return the tokens that the request appends to the parked context. Raises RequestError."""
    if body.text:
        runtime.completion.verify_chars(len(body.text))
        assert isinstance(body.text, str)
        return await runtime.completion.encoder.encode_behind(body.text)
    return await runtime.prompt(body.input_ids, "input_ids") if body.input_ids else ints()


def _digest(body: GenerateRequest) -> bytes:
    """Return a digest of the fields that decide the answer. Raises RequestError if a value is not
    JSON, which a call of ``sglang.Engine.generate`` may contain."""
    digest = sha256()
    for name in _DECIDING:
        try:
            digest.update(msgspec.json.encode(getattr(body, name)) + b"\n")
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise RequestError(f"{name} cannot be written as JSON: {error}.", name) from error
    return digest.digest()
