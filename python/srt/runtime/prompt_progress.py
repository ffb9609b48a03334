"""Prompt progress: the computed part of a prompt, reported in streams of requests that set
``return_progress``. The field is the one of llama.cpp's server."""

from __future__ import annotations

from dataclasses import replace

import msgspec
from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.request_error import RequestError


class PromptProgressed(msgspec.Struct):
    """``prompt_progress`` of one event.

    Attributes:
        total: tokens of the prompt.
        cache: tokens of the prompt that were cached.
        processed: tokens of the prompt that are cached or computed.
        time_ms: milliseconds since the request was submitted.
    """

    total: int
    cache: int
    processed: int
    time_ms: int


class PromptNews:
    """The progress that a stream has reported so far, so that it reports only changes."""

    def __init__(self) -> None:
        self._sent = 0

    def of(self, output: Output) -> PromptProgressed | None:
        """Return the progress if it has changed since the last call, otherwise None. Requests
        without ``return_progress`` have no progress."""
        if output.prompt_ready == self._sent:
            return None
        self._sent, stats = output.prompt_ready, output.stats
        ready = min(output.prompt_ready, stats.prompt_tokens)
        time_ms = round(1000 * output.seconds)
        return PromptProgressed(stats.prompt_tokens, stats.cached_tokens, ready, time_ms)


def reporting(request: CompletionRequest) -> CompletionRequest:
    """Return the request with prompt progress enabled. Raises RequestError if the prompt is
    computed separately from its completions (several completions, or scored choices)."""
    if request.sampling.n > 1 or request.score_choices:
        given = f"n is {request.sampling.n}" if request.sampling.n > 1 else "choices are scored"
        raise RequestError(
            f"return_progress is true and {given}; progress is sent for a prompt with one sampled "
            "completion. Set return_progress to false, or n to 1 without choices_scoring.",
            "return_progress",
            "unsupported",
        )
    return replace(request, report_prompt=True)
