"""Record: facts of the HTTP request being answered. All code that helps to answer it adds to it; in
the end the log, the metrics and the trace are written from it."""

from __future__ import annotations

import time
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field

from sglang.srt.requests.completion.completion_request import CompletionRequest
from sglang.srt.requests.completion.output import Output


@dataclass(slots=True)
class RequestRecord:
    """Facts of one HTTP request. Times are of the monotonic clock, in seconds.

    Attributes:
        route: the path's template; "other" where no route has it.
        tenant: name of the key it came with.
        status: 0 until the answer has begun.
        whole: the answer was sent to its end.
        response_id: the answer's own id, as the client got it.
        requests: the prompts to be completed, in no order.
        finishes: how many completions ended by which reason.
        queued: the longest wait for the first pass. first: when the first token came.
        private: the log may have no parameter and no text of it.
        keep: whether ``outputs``, the finished completions with their requests, are wanted.
    """

    method: str = ""
    route: str = ""
    request_id: str = ""
    tenant: str = ""
    status: int = 0
    whole: bool = False
    response_id: str = ""
    started: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    requests: list[CompletionRequest] = field(default_factory=list)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finishes: Counter[str] = field(default_factory=Counter)
    queued: float | None = None
    first: float | None = None
    private: bool = False
    keep: bool = False
    outputs: list[tuple[CompletionRequest, Output]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.ended - self.started

    @property
    def gone(self) -> bool:
        """The client did not wait for the end."""
        return self.status == 499 or not self.whole

    def begin(self, request: CompletionRequest) -> None:
        """One more prompt is to be completed."""
        self.requests.append(request)
        self.response_id = self.response_id or request.rid

    def read(self, prompt: int, cached: int) -> None:
        """A prompt was computed, ``cached`` tokens of it found in the cache."""
        self.prompt_tokens += prompt
        self.cached_tokens += cached

    def finish(self, request: CompletionRequest, output: Output) -> None:
        """A completion has ended."""
        assert output.finish is not None
        self.completion_tokens += output.completion_tokens
        self.finishes[output.finish.reason] += 1
        self.queued = max(self.queued or 0.0, output.stats.queue_seconds)
        if self.keep and not self.private:
            self.outputs.append((request, output))


current: ContextVar[RequestRecord | None] = ContextVar("record", default=None)


def record() -> RequestRecord:
    """The record of the request being answered; an unused one outside of requests."""
    return current.get() or RequestRecord()
