"""Replies of /api/chat and /api/generate: one JSON object, or one on each line of a stream.

A tool call is sent as a whole once its arguments are complete. The last line has the reason of the
end, the counts, and times in nanoseconds.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from pydantic_core import from_json
from sglang.semantics.tool_calls.deltas import AnswerWords, Arguments, Begin, Delta, Thought
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.request_error import RequestError
from sglang.srt.web.exchange.error_replies import describe
from sglang.srt.web.exchange.event_stream import EventForm
from sglang.srt.web.route import LINES

NOT_JSON = "INVALID_JSON"  # argument that holds the text if a call's arguments are no JSON object


def line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def error_line(error: Exception) -> dict[str, Any]:
    return {"error": describe(error)[1]["error"]["message"]}


NDJSON = EventForm(line, b"", error_line, LINES)


class Pieces:
    """Converter of deltas to pieces of a reply: fields of Ollama's messages."""

    def __init__(self) -> None:
        self._name = ""
        self._arguments: list[str] = []

    def add(self, deltas: Iterable[Delta]) -> list[dict[str, Any]]:
        """Return the messages of the deltas: text, reasoning, and complete calls."""
        found: list[dict[str, Any]] = []
        for delta in deltas:
            if isinstance(delta, Arguments):
                self._arguments.append(delta.text)
                continue
            found += self._call()
            if isinstance(delta, Begin):
                self._name = delta.name
            elif isinstance(delta, Thought):
                found.append({"content": "", "thinking": delta.text})
            elif isinstance(delta, AnswerWords):
                found.append({"content": delta.text})
        return found

    def end(self, whole: bool) -> list[dict[str, Any]]:
        """Return the last call. ``whole``: the call is complete; a cut one is left out."""
        return self._call() if whole else []

    def _call(self) -> list[dict[str, Any]]:
        if not self._name:
            return []
        function = {"name": self._name, "arguments": arguments_of("".join(self._arguments))}
        self._name, self._arguments = "", []
        call = {"id": f"call_{uuid.uuid4().hex[:8]}", "function": function}
        return [{"content": "", "tool_calls": [call]}]


def arguments_of(text: str) -> dict[str, Any]:
    """Parse a call's arguments; text that is no JSON object becomes the argument NOT_JSON."""
    try:
        value = from_json(text or "{}", allow_inf_nan=False)
    except ValueError:
        return {NOT_JSON: text}
    return value if isinstance(value, dict) else {NOT_JSON: text}


def joined(pieces: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join all pieces to one message."""
    found: dict[str, Any] = {"content": "".join(piece["content"] for piece in pieces)}
    if thoughts := "".join(piece.get("thinking", "") for piece in pieces):
        found["thinking"] = thoughts
    if calls := [call for piece in pieces for call in piece.get("tool_calls", ())]:
        found["tool_calls"] = calls
    return found


def of_chat(piece: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of /api/chat for a piece."""
    return {"message": {"role": "assistant", **piece}}


def of_prompt(piece: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of /api/generate for a piece."""
    content, rest = piece["content"], {k: v for k, v in piece.items() if k != "content"}
    return {"response": content, **rest}


def ended(output: Output) -> dict[str, Any]:
    """Return the last fields of a finished reply. Raises RequestError if no token could follow."""
    assert output.finish is not None
    if output.finish.reason == "error":
        raise RequestError(output.finish.message or "No token could follow; change the request.")
    stats = output.stats
    first = max(stats.first_token_seconds, stats.queue_seconds)
    return {
        "done": True,
        "done_reason": output.finish.reason,
        "total_duration": _nanoseconds(output.seconds),
        "load_duration": _nanoseconds(stats.queue_seconds),
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": _nanoseconds(first - stats.queue_seconds),
        "eval_count": output.completion_tokens,
        "eval_duration": _nanoseconds(output.seconds - first),
    }


def _nanoseconds(seconds: float) -> int:
    return max(0, round(seconds * 1e9))
