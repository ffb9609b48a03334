"""Generated: one completion in the form in which ``/generate`` and ``sglang.Engine.generate``
return it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, TypeAlias, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType
from sglang.srt.core.ints import ints
from sglang.srt.core.request_stats import Count, RequestCounts
from sglang.srt.requests.completion.completion_request import CompletionRequest, Logprobs
from sglang.srt.requests.completion.output import HintAnswer, Output, PromptLogprobs
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.prompt_progress import PromptProgressed

T = TypeVar("T")
Maybe: TypeAlias = T | UnsetType  # a field that may be absent
Seconds = Annotated[float, Meta(ge=0)]
Triple: TypeAlias = tuple[float | None, int, str | None]
Triples = list[Triple]


class EndedByStop(msgspec.Struct, tag_field="type", tag="stop"):
    """Generation ended at a stop string, a stop pattern or an end token, which ``matched`` holds.
    ``resume``: handle of the context, if it was parked."""

    matched: str | int | None
    resume: Maybe[str] = UNSET


class EndedByLength(msgspec.Struct, tag_field="type", tag="length"):
    """Generation ended at the token limit. ``resume``: handle of the context, if it was parked."""

    length: Count
    resume: Maybe[str] = UNSET


class EndedByAbort(msgspec.Struct, tag_field="type", tag="abort"):
    """The request was aborted."""

    message: str


class EndedByError(msgspec.Struct, tag_field="type", tag="error"):
    """Generation ended because no token could follow."""

    message: str


class Spans(msgspec.Struct):
    """Seconds since the request was received. ``first_token`` is null if there was no token."""

    submitted: Seconds
    scheduled: Seconds
    first_token: Seconds | None
    end: Seconds
    retractions: Count


class CompletionMeta(RequestCounts, kw_only=True, omit_defaults=False):
    """Facts of one completion: why it ended, what it used, and log-probabilities if requested."""

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
    option_logprobs: Maybe[list[list[Triple]]] = UNSET
    spans: Maybe[Spans] = UNSET
    hidden_states: Maybe[list[Any]] = UNSET
    kv_hints: Maybe[list[HintAnswer]] = UNSET


class Generated(msgspec.Struct):
    """One completion, or its state so far. ``index`` is present in a stream of several completions,
    ``prompt_progress`` if more of the prompt was computed since the last item."""

    text: str
    output_ids: list[Count]
    meta_info: CompletionMeta
    index: Maybe[Count] = UNSET
    prompt_progress: Maybe[PromptProgressed] = UNSET


class LogprobWriter:
    """Writer of the log-probability fields of one completion. Each generated token is written once,
    however often a stream shows it."""

    def __init__(
        self, runtime: EngineRuntime, request: CompletionRequest, wanted: Logprobs, with_text: bool
    ) -> None:
        self._decode = runtime.tokenizer.decode if with_text else None
        self._request, self._wanted = request, wanted
        self._given = len(request.generated)  # without log-probabilities
        self._read = 0  # number of tokens before the first one in ``_tokens``
        self._tokens: Triples = []
        self._tops: list[Triples] = []
        self._probes: list[Triples] = []

    def input(self, meta: CompletionMeta, output: Output) -> None:
        """Set the prompt's fields. The first entry has no value, by convention of this API,
        wherever the report begins."""
        prompt = output.prompt_logprobs or PromptLogprobs()
        given = self._request.prompt[prompt.start :] if prompt.logprobs else ints()
        values = [None, *prompt.logprobs[1:]] if prompt.logprobs else []
        meta.input_token_logprobs = self._triples(zip(given, values))
        if self._wanted.top:
            tops = [self._triples(pairs or ()) for pairs in prompt.tops[1:]]
            meta.input_top_logprobs = [None, *tops] if prompt.tops else []
        if self._wanted.probe:
            probes = [self._probed(row or ()) for row in prompt.probes[1:]]
            meta.input_token_ids_logprobs = [None, *probes] if prompt.probes else []

    def output(self, meta: CompletionMeta, output: Output, fresh: bool = False) -> None:
        """Set the fields of all generated tokens, except the tokens given in the request.
        ``fresh``: only of tokens that are new since the last call."""
        if fresh:
            self._read = self._read + len(self._tokens)
            self._tokens, self._tops, self._probes = [], [], []
        new = slice(self._read + len(self._tokens), None)
        tokens = output.tokens[self._given + new.start :]
        self._tokens += self._triples(zip(tokens, output.logprobs[new]))
        self._tops += [self._triples(pairs) for pairs in output.tops[new]]
        self._probes += [self._probed(row) for row in output.probes[new]]
        meta.output_token_logprobs = self._tokens[:]
        if self._wanted.top:
            meta.output_top_logprobs = self._tops[:]
        if self._wanted.probe:
            meta.output_token_ids_logprobs = self._probes[:]

    def _probed(self, row: Iterable[float]) -> Triples:
        """Return the entries of the requested ids. An id of log-probability -inf, which the
        constraint does not allow, has no value."""
        values = (None if value == -math.inf else value for value in row)
        return self._triples(zip(self._wanted.probe, values))

    def _triples(self, pairs: Iterable[tuple[int, float | None]]) -> Triples:
        if self._decode is None:
            return [(value, token, None) for token, value in pairs]
        return [(value, token, self._decode([token])) for token, value in pairs]
