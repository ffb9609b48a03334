"""Answer: the object of one response, from its creation to its end, and its events."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sglang.srt.requests.completion.output import HintAnswer, Output
from sglang.srt.runtime.conversations.chat_request import ChatCall
from sglang.srt.web.exchange.error_replies import describe
from sglang.srt.web.openai.responses.item_writer import Event, ItemWriter
from sglang.srt.web.openai.responses.responses_body import ResponsesBody, format_of
from sglang.srt.web.openai.responses.responses_tools import choice_of, echoed, tools_of
from sglang.srt.web.server_state import ServerState

# Error codes of the Responses API by the server's error codes.
_CODES = {
    "queue_full": "rate_limit_exceeded",
    "invalid_value": "invalid_prompt",
    "unsupported": "invalid_prompt",
    "context_length_exceeded": "invalid_prompt",
}
_ENDS = {"stop": "completed", "length": "incomplete", "abort": "cancelled", "error": "failed"}


class Answer:
    """A response that is being generated.

    ``name``: part of the response's id and of its items' ids.

    Attributes:
        status: status in the API's terms. ended: the status is a final one.
        created: the first event was emitted.
        kept: the field with the answers to the hints; {} without hints.
    """

    def __init__(self, state: ServerState, body: ResponsesBody, call: ChatCall, name: str) -> None:
        self.id = f"resp_{name}"
        self.writer = ItemWriter(name)
        self.status = "queued" if body.background else "in_progress"
        self.created = self._started = False
        self.kept: dict[str, list[HintAnswer]] = {}
        self._fixed = _fixed(state, body, call)
        self._created = int(time.time())
        self._completed: int | None = None
        self._error: dict[str, Any] | None = None
        self._cut: dict[str, Any] | None = None
        self._usage: dict[str, Any] | None = None

    @property
    def ended(self) -> bool:
        return self.status not in ("queued", "in_progress")

    def value(self) -> dict[str, Any]:
        """Return the response object in its current state."""
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": self.status,
            "completed_at": self._completed,
            "error": self._error,
            "incomplete_details": self._cut,
            **self._fixed,
            "output": self.writer.items(),
            "usage": self._usage,
            **self.kept,
        }

    def create(self) -> list[Event]:
        """Return the first events of the response; [] if they were returned before."""
        if self.created:
            return []
        self.created = True
        events = [self._event("response.created")]
        return [*events, self._event("response.queued")] if self.status == "queued" else events

    def start(self) -> list[Event]:
        """Return the events of the first output; [] if they were returned before."""
        if self._started:
            return []
        events, self._started = self.create(), True
        self.status = "in_progress"
        return [*events, self._event("response.in_progress")]

    def end(self, outputs: Sequence[Output], called: bool, thoughts: int) -> list[Event]:
        """End the response after its last turn, and return the last events. ``called``: there are
        calls, and the last one is complete. ``thoughts``: number of reasoning tokens."""
        output = outputs[-1]
        assert output.finish is not None
        status = _ENDS[output.finish.reason]
        self._usage = _usage(outputs, thoughts)
        if status == "incomplete":
            self._cut = {"reason": "max_output_tokens"}
        elif status == "failed":
            self._error = {"code": "server_error", "message": output.finish.message}
        whole = called if self.writer.in_call else status == "completed"
        return self._end(status, "completed" if whole else "incomplete")

    def fail(self, error: BaseException) -> list[Event]:
        """End the response with an error, and return the last events."""
        code, body = describe(error)
        message = body["error"]["message"]
        self._error = {"code": _CODES.get(code, "server_error"), "message": message}
        first = self.writer.event("error", code=code, message=message, param=body["error"]["param"])
        return [first, *self._end("failed", "incomplete")]

    def cancel(self) -> list[Event]:
        """Cancel the response, and return the last events."""
        return self._end("cancelled", "incomplete")

    def _end(self, status: str, last: str) -> list[Event]:
        """End the response with ``status``, and its last item with status ``last``."""
        written = self.writer.items() or status in ("completed", "incomplete")
        events = self.writer.end(last) if written else []
        self.status = status
        if status == "completed":
            self._completed = int(time.time())
        # The API has no event for a response that was cancelled.
        kind = "incomplete" if status == "cancelled" else status
        return [*events, self._event(f"response.{kind}")]

    def _event(self, kind: str) -> Event:
        return self.writer.event(kind, response=self.value())


def _fixed(state: ServerState, body: ResponsesBody, call: ChatCall) -> dict[str, Any]:
    """Return the constant fields: the request's fields, with defaults for the missing ones."""
    sampling, tools = call.request.sampling, tools_of(body.tools)
    return {
        "background": bool(body.background),
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": body.model or state.runtime.model_name,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {"effort": body.effort, "summary": None},
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.kept,
        "temperature": sampling.temperature,
        "text": {"format": format_of(body)},
        "tool_choice": choice_of(body.tool_choice, tools),
        "tools": echoed(tools),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": sampling.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _usage(outputs: Sequence[Output], thoughts: int) -> dict[str, Any]:
    """Return the token counts, summed over all turns. Writing to the cache is not charged."""
    prompt = sum(output.stats.prompt_tokens for output in outputs)
    generated = sum(output.completion_tokens for output in outputs)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": sum(output.stats.cached_tokens for output in outputs),
            "cache_write_tokens": 0,
        },
        "output_tokens": generated,
        "output_tokens_details": {"reasoning_tokens": min(thoughts, generated)},
        "total_tokens": prompt + generated,
    }
