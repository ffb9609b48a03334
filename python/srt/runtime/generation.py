"""Generation: answers of ``/generate`` and of ``sglang.Engine.generate``.

A stream is cumulative, or a sequence of deltas. A cumulative item holds the whole completion so
far. One item for each token would cost the square of the completion's length. So longer items are
sent less often: ``TOKEN_BYTES``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec
from msgspec import UNSET
from sglang.srt.core.request_stats import RequestCounts
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Finish, Output
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.caller import ANYBODY, Caller
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.generate_request import GenerateCall, GenerateRequest
from sglang.srt.runtime.generated import (
    CompletionMeta,
    EndedByAbort,
    EndedByError,
    EndedByLength,
    EndedByStop,
    Generated,
    LogprobWriter,
    Spans,
)
from sglang.srt.runtime.hidden_states import states_of
from sglang.srt.runtime.option_scoring import option_logprobs
from sglang.srt.runtime.prompt_progress import PromptNews
from sglang.srt.runtime.resumed_request import read_call

TOKEN_BYTES = 16 << 10  # most bytes of cumulative items for each generated token, on average
ENTRY_BYTES = 32  # approximate bytes of one log-probability with its token id in JSON
ID_BYTES = 8  # bytes of a token id
COUNTS = len(RequestCounts.__struct_fields__)  # the first fields of RequestStats


async def generate(
    runtime: EngineRuntime, body: GenerateRequest, caller: Caller = ANYBODY
) -> Generated | list[Generated]:
    """Return the completions of a request as a list; a single completion (one prompt, not in a
    list, and ``n`` 1) is returned by itself.

    Raises RequestError, and EngineLost if the engine died.
    """
    call = await read_call(runtime, body, caller)
    return await answered(call, await call.finish())


async def answered(
    call: GenerateCall, results: Sequence[Sequence[Output]]
) -> Generated | list[Generated]:
    """Return the completions of a call whose finished outputs are ``results``."""
    runtime, caller, found = call.runtime, call.caller, list[Generated]()
    for request, outputs, wanted in zip(call.requests, results, call.states):
        for output in outputs:
            shown = _show(request, output, call.received)
            if request.logprobs is not None:
                writer = LogprobWriter(runtime, request, request.logprobs, call.with_text)
                writer.input(shown.meta_info, output)
                writer.output(shown.meta_info, output)
            if request.scored is not None:
                shown.meta_info.option_logprobs = option_logprobs(call, request, output)
                shown.meta_info.prompt_tokens += output.row_tokens
                if caller.charge is not None:
                    caller.charge(output.row_tokens)
            if wanted:
                shown.meta_info.hidden_states = await states_of(runtime, request, output, caller)
            found.append(shown)
    return found[0] if call.single else found


async def stream(
    runtime: EngineRuntime, body: GenerateRequest, caller: Caller = ANYBODY
) -> AsyncGenerator[Generated, None]:
    """Yield the completions of a request as they grow. The first item of a completion has the
    prompt's log-probabilities; in a cumulative stream the last item has them too. Raises the errors
    of ``generate``."""
    incremental = _incremental(runtime, body)
    if body.options is not None:
        raise RequestError("stream is true and options are scored; set it to false.", "stream")
    call = await read_call(runtime, body, caller)
    interval = runtime.config.server.stream_interval
    streamed: dict[int, _Streamed] = {}
    ended: list[tuple[CompletionRequest, Output, Generated]] = []
    offsets = [0]
    for request in call.requests:
        offsets.append(offsets[-1] + request.sampling.n)
    async with aclosing(call.run()) as items:
        async for index, output in items:
            place, request = offsets[index] + output.index, call.requests[index]
            if place not in streamed:
                writer = None
                if request.logprobs is not None:
                    writer = LogprobWriter(runtime, request, request.logprobs, call.with_text)
                streamed[place] = _Streamed(request, incremental, writer)
            told = streamed[place].prompt_news.of(output)
            if told is None and not streamed[place].is_due(output, interval):
                continue
            item = streamed[place].show(output, call.received)
            if told is not None:
                item.prompt_progress = told
            if not call.single:
                item.index = place
            if call.states[index] and output.finish is not None:
                ended.append((request, output, item))
            else:
                yield item
    for request, output, item in ended:  # last, because reading states is a request of its own
        item.meta_info.hidden_states = await states_of(runtime, request, output, caller)
        yield item


def _incremental(runtime: EngineRuntime, body: GenerateRequest) -> bool:
    """Whether the stream is a sequence of deltas. Raises RequestError."""
    wanted = body.incremental_streaming_output
    if wanted is None:
        wanted = runtime.config.server.incremental_streaming_output
    if wanted and runtime.config.grammar.jumps == "string":
        raise RequestError(
            "incremental_streaming_output is true, and this server runs with --jump-forward "
            "string, which replaces tokens that were sent; set it to false.",
            "incremental_streaming_output",
            "unsupported",
        )
    return wanted


class _Streamed:
    """State of one streamed completion. ``prompt_news``: progress reports about its prompt."""

    def __init__(
        self, request: CompletionRequest, incremental: bool, writer: LogprobWriter | None
    ) -> None:
        self._request, self._incremental, self._writer = request, incremental, writer
        self._tokens = self._chars = 0
        self._begun, self.prompt_news = False, PromptNews()
        entries = (
            0
            if request.logprobs is None
            else 1 + request.logprobs.top + len(request.logprobs.probe)
        )
        self._token_bytes = ID_BYTES + ENTRY_BYTES * entries

    def is_due(self, output: Output, interval: int) -> bool:
        """Whether the next item is due: at the end, and every ``interval`` tokens; less often for
        long cumulative items."""
        if output.finish is not None:
            return True
        if not self._incremental:
            size = len(output.text) + self._token_bytes * output.completion_tokens
            interval = max(interval, size // TOKEN_BYTES)
        return output.completion_tokens - self._tokens >= interval

    def show(self, output: Output, received: float | None) -> Generated:
        """Return the next item: the whole completion so far, or its new part."""
        chars, tokens = (self._chars, self._tokens) if self._incremental else (0, 0)
        shown = _show(self._request, output, received, chars, tokens)
        first, last = not self._begun, output.finish is not None
        if self._writer is not None:
            if first or (last and not self._incremental):
                self._writer.input(shown.meta_info, output)
            self._writer.output(shown.meta_info, output, self._incremental)
        self._begun, self._tokens, self._chars = True, len(output.tokens), len(output.text)
        return shown


def _show(
    request: CompletionRequest,
    output: Output,
    received: float | None,
    chars: int = 0,
    tokens: int = 0,
) -> Generated:
    """Return a completion without its first ``chars`` characters and ``tokens`` tokens."""
    finish = output.finish
    meta = CompletionMeta(
        *msgspec.structs.astuple(output.stats)[:COUNTS],
        id=request.rid if request.sampling.n == 1 else f"{request.rid}-{output.index}",
        finish_reason=None if finish is None else _finish_reason(finish, output),
        e2e_latency=output.seconds,
    )
    meta.completion_tokens = output.completion_tokens  # the engine's count comes at the end
    if output.choice_logprobs:
        meta.choice_logprobs = output.choice_logprobs
    if output.hints:
        meta.kv_hints = output.hints
    if received is not None and finish is not None:
        meta.spans = _spans(output, received)
    return Generated(output.text[chars:] if chars else output.text, output.tokens[tokens:], meta)


def _spans(output: Output, received: float) -> Spans:
    """Return the stages of a completion, in seconds since its request was received. Two processes
    measure these times, each from its own start; so clamp them to never decrease."""
    submitted = max(output.started - received, 0.0)
    end = submitted + output.seconds
    scheduled = min(submitted + output.stats.queue_seconds, end)
    first = output.stats.first_token_seconds or None
    if first is not None:
        first = min(max(submitted + first, scheduled), end)
    return Spans(submitted, scheduled, first, end, output.stats.retractions)


def _finish_reason(
    finish: Finish, output: Output
) -> EndedByStop | EndedByLength | EndedByAbort | EndedByError:
    resume = output.resume or UNSET
    if finish.reason == "stop":
        return EndedByStop(finish.matched, resume)
    if finish.reason == "length":
        return EndedByLength(output.completion_tokens, resume)
    if finish.reason == "error":
        return EndedByError(finish.message)
    return EndedByAbort("The request was aborted.")
