"""Generated: one completion as ``/generate`` and ``sglang.Engine.generate`` answer it.

A stream is cumulative, or a sequence of deltas. A cumulative item holds all of the completion so
far, so sending one with each token would cost the square of its length. The longer the items, the
further apart they are: ``TOKEN_BYTES``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sglang.srt.core.ints import ints
from sglang.srt.core.request_stats import Count, RequestCounts
from sglang.srt.program.ask import Ask, Logprobs
from sglang.srt.program.output import Finish, Output, PromptLogprobs
from sglang.srt.runtime.runtime import Runtime

TOKEN_BYTES = 16 << 10  # bytes of cumulative items for each generated token
ENTRY_BYTES = 32  # bytes of one log-probability with its token id in JSON, about
ID_BYTES = 8  # bytes of a token id
COUNTS = len(RequestCounts.__struct_fields__)  # which statistics begin with

T = TypeVar("T")
Maybe: TypeAlias = T | UnsetType  # a field that may not be there
Seconds = Annotated[float, Meta(ge=0)]
Triple: TypeAlias = tuple[float | None, int, str | None]
Triples = list[Triple]


class EndedByStop(msgspec.Struct, tag_field="type", tag="stop"):
    """A stop string, a stop pattern or an end token was reached, which ``matched`` is."""

    matched: str | int | None


class EndedByLength(msgspec.Struct, tag_field="type", tag="length"):
    """The limit of tokens was reached."""

    length: Count


class EndedByAbort(msgspec.Struct, tag_field="type", tag="abort"):
    """The request was aborted."""

    message: str


class EndedByError(msgspec.Struct, tag_field="type", tag="error"):
    """No token could follow."""

    message: str


class Spans(msgspec.Struct):
    """Seconds since the request was received. ``first_token`` is null where there was none."""

    submitted: Seconds
    scheduled: Seconds
    first_token: Seconds | None
    end: Seconds
    retractions: Count


class CompletionMeta(RequestCounts, kw_only=True, omit_defaults=False):
    """Facts of one completion: why it ended, what it used, log-probabilities where requested."""

    id: str
    finish_reason: EndedByStop | EndedByLength | EndedByAbort | EndedByError | None
    e2e_latency: float
    input_token_logprobs: Maybe[list[Triple]] = UNSET
    output_token_logprobs: Maybe[list[Triple]] = UNSET
    input_top_logprobs: Maybe[list[list[Triple] | None]] = UNSET
    output_top_logprobs: Maybe[list[list[Triple]]] = UNSET
    input_token_ids_logprobs: Maybe[list[list[Triple] | None]] = UNSET
    output_token_ids_logprobs: Maybe[list[list[Triple]]] = UNSET
    choice_logprobs: Maybe[list[float]] = UNSET
    spans: Maybe[Spans] = UNSET
    hidden_states: Maybe[list[Any]] = UNSET


class Generated(msgspec.Struct):
    """One completion, or what is known of it so far. ``index`` is there in a stream of several."""

    text: str
    output_ids: list[Count]
    meta_info: CompletionMeta
    index: Maybe[Count] = UNSET


class StreamedCompletion:
    """The streamed part of one completion."""

    def __init__(self, ask: Ask, incremental: bool, writer: LogprobWriter | None) -> None:
        self._ask, self._incremental, self._writer = ask, incremental, writer
        self._tokens = self._chars = 0
        self._begun = False
        entries = 0 if ask.logprobs is None else 1 + ask.logprobs.top + len(ask.logprobs.probe)
        self._token_bytes = ID_BYTES + ENTRY_BYTES * entries

    def is_due(self, output: Output, interval: int) -> bool:
        """Whether it is time for an item, one in ``interval`` tokens where items are short."""
        if output.finish is not None:
            return True
        if not self._incremental:
            size = len(output.text) + self._token_bytes * output.completion_tokens
            interval = max(interval, size // TOKEN_BYTES)
        return output.completion_tokens - self._tokens >= interval

    def show(self, output: Output, received: float | None) -> Generated:
        """The next item: all of the completion, or what is new of it."""
        chars, tokens = (self._chars, self._tokens) if self._incremental else (0, 0)
        shown = show(self._ask, output, received, chars, tokens)
        first, last = not self._begun, output.finish is not None
        if self._writer is not None:
            if first or (last and not self._incremental):
                self._writer.input(shown.meta_info, output)
            self._writer.output(shown.meta_info, output, self._incremental)
        self._begun, self._tokens, self._chars = True, len(output.tokens), len(output.text)
        return shown


def show(
    ask: Ask, output: Output, received: float | None, chars: int = 0, tokens: int = 0
) -> Generated:
    """A completion without its first ``chars`` characters and ``tokens`` tokens."""
    finish = output.finish
    meta = CompletionMeta(
        *msgspec.structs.astuple(output.stats)[:COUNTS],
        id=ask.rid if ask.sampling.n == 1 else f"{ask.rid}-{output.index}",
        finish_reason=None if finish is None else _finish_reason(finish, output.completion_tokens),
        e2e_latency=output.seconds,
    )
    meta.completion_tokens = output.completion_tokens  # the engine's count comes at the end
    if output.choice_logprobs:
        meta.choice_logprobs = output.choice_logprobs
    if received is not None and finish is not None:
        meta.spans = _spans(output, received)
    return Generated(output.text[chars:] if chars else output.text, output.tokens[tokens:], meta)


def _spans(output: Output, received: float) -> Spans:
    """The stages of a completion, in seconds since its request was received. They never go
    backwards: its times are those of two processes, each measured from its own beginning."""
    submitted = max(output.started - received, 0.0)
    end = submitted + output.seconds
    scheduled = min(submitted + output.stats.queue_seconds, end)
    first = output.stats.first_token_seconds or None
    if first is not None:
        first = min(max(submitted + first, scheduled), end)
    return Spans(submitted, scheduled, first, end, output.stats.retractions)


def _finish_reason(
    finish: Finish, tokens: int
) -> EndedByStop | EndedByLength | EndedByAbort | EndedByError:
    if finish.reason == "stop":
        return EndedByStop(finish.matched)
    if finish.reason == "length":
        return EndedByLength(tokens)
    if finish.reason == "error":
        return EndedByError(finish.message)
    return EndedByAbort("The request was aborted.")


class LogprobWriter:
    """The log-probability fields of one completion. Each generated token is written once, however
    often a stream shows it."""

    def __init__(self, runtime: Runtime, ask: Ask, wanted: Logprobs, with_text: bool) -> None:
        self._decode = runtime.tokenizer.decode if with_text else None
        self._ask, self._wanted = ask, wanted
        self._read = 0  # tokens before those in ``_tokens``
        self._tokens: Triples = []
        self._tops: list[Triples] = []
        self._probes: list[Triples] = []

    def input(self, meta: CompletionMeta, output: Output) -> None:
        """Set the prompt's fields. The first entry has no value, by this API's custom, wherever the
        report begins."""
        prompt = output.prompt_logprobs or PromptLogprobs()
        given = self._ask.prompt[prompt.start :] if prompt.logprobs else ints()
        values = [None, *prompt.logprobs[1:]] if prompt.logprobs else []
        meta.input_token_logprobs = self._triples(zip(given, values))
        if self._wanted.top:
            tops = [self._triples(pairs or ()) for pairs in prompt.tops[1:]]
            meta.input_top_logprobs = [None, *tops] if prompt.tops else []
        if self._wanted.probe:
            probes = [self._probed(row or ()) for row in prompt.probes[1:]]
            meta.input_token_ids_logprobs = [None, *probes] if prompt.probes else []

    def output(self, meta: CompletionMeta, output: Output, fresh: bool = False) -> None:
        """Set the fields of all generated tokens, or with ``fresh`` of those that are new since the
        last call."""
        if fresh:
            self._read = self._read + len(self._tokens)
            self._tokens, self._tops, self._probes = [], [], []
        new = slice(self._read + len(self._tokens), None)
        self._tokens += self._triples(zip(output.tokens[new], output.logprobs[new]))
        self._tops += [self._triples(pairs) for pairs in output.tops[new]]
        self._probes += [self._probed(row) for row in output.probes[new]]
        meta.output_token_logprobs = self._tokens[:]
        if self._wanted.top:
            meta.output_top_logprobs = self._tops[:]
        if self._wanted.probe:
            meta.output_token_ids_logprobs = self._probes[:]

    def _probed(self, row: Iterable[float]) -> Triples:
        """An id that the constraint does not allow has no value, where that counts."""
        values = (None if value == -math.inf else value for value in row)
        return self._triples(zip(self._wanted.probe, values))

    def _triples(self, pairs: Iterable[tuple[int, float | None]]) -> Triples:
        if self._decode is None:
            return [(value, token, None) for token, value in pairs]
        return [(value, token, self._decode([token])) for token, value in pairs]
