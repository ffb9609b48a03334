"""RequestRecord: facts of the HTTP request being answered. The code that answers the request adds
facts; at the end the log, the metrics and the trace are written from the record."""

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
        route: the path's template; "other" for an unknown path.
        tenant: name of the request's API key.
        status: status of the answer; 0 until the answer has begun.
        whole: the answer was sent completely.
        response_id: id of the answer that the client got.
        requests: the prompts to complete, in no particular order.
        finishes: number of completions by the reason of their end.
        queued: the longest wait for the first pass. first: moment of the first token.
        private: the log must not have parameters or texts of the request.
        keep: keep ``outputs``, the finished completions with their requests.
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
        """Whether the client disconnected before the end of the answer."""
        return self.status == 499 or not self.whole

    def begin(self, request: CompletionRequest) -> None:
        """Add a prompt that will be completed."""
        self.requests.append(request)
        self.response_id = self.response_id or request.rid

    def read(self, prompt: int, cached: int) -> None:
        """Count a computed prompt of ``prompt`` tokens, of which ``cached`` were cached."""
        self.prompt_tokens += prompt
        self.cached_tokens += cached

    def finish(self, request: CompletionRequest, output: Output) -> None:
        """Count a completion that has ended."""
        assert output.finish is not None
        self.completion_tokens += output.completion_tokens
        self.finishes[output.finish.reason] += 1
        self.queued = max(self.queued or 0.0, output.stats.queue_seconds)
        if self.keep and not self.private:
            self.outputs.append((request, output))


current: ContextVar[RequestRecord | None] = ContextVar("record", default=None)


def record() -> RequestRecord:
    """Return the record of the request being answered; outside of requests a new, unused one."""
    return current.get() or RequestRecord()
