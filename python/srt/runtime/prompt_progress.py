"""Prompt progress: how much of a prompt is computed, in the streams of requests that want to know
(``return_progress``). The field is that of llama.cpp's server."""

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
        cache: those that the cache had.
        processed: those that are ready, the cache's included.
        time_ms: milliseconds since the request was submitted.
    """

    total: int
    cache: int
    processed: int
    time_ms: int


class PromptNews:
    """Remembers how much of a prompt's progress a stream has sent, so that it sends only news."""

    def __init__(self) -> None:
        self._sent = 0

    def of(self, output: Output) -> PromptProgressed | None:
        """Progress since the last call; None where there is none, or the request wants none."""
        if output.prompt_ready == self._sent:
            return None
        self._sent, stats = output.prompt_ready, output.stats
        ready = min(output.prompt_ready, stats.prompt_tokens)
        time_ms = round(1000 * output.seconds)
        return PromptProgressed(stats.prompt_tokens, stats.cached_tokens, ready, time_ms)


def reporting(request: CompletionRequest) -> CompletionRequest:
    """The request, which reports its prompt now. Raises RequestError where its prompt is computed
    apart from its completions."""
    if request.sampling.n > 1 or request.score_choices:
        given = f"n is {request.sampling.n}" if request.sampling.n > 1 else "choices are scored"
        raise RequestError(
            f"return_progress is true and {given}; progress is sent for a prompt with one sampled "
            "completion. Set return_progress to false, or n to 1 without choices_scoring.",
            "return_progress",
            "unsupported",
        )
    return replace(request, report_prompt=True)
