"""Fields of the answers of OpenAI's routes: ids, usage, log-probabilities, finish reasons."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec
from sglang.srt.core.messages import Done
from sglang.srt.requests.completion.output import Output
from sglang.srt.runtime.completion_fields import CompletionFields
from sglang.srt.web.server_state import ServerState
from sglang.srt.web.telemetry.request_record import record


class ReplyHead(msgspec.Struct):
    """Fields of every object of one answer."""

    id: str
    model: str
    created: int

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def new_reply(state: ServerState, body: CompletionFields, prefix: str) -> ReplyHead:
    name = record().response_id = body.rid or f"{prefix}-{uuid.uuid4().hex}"
    return ReplyHead(name, body.model or state.runtime.model_name, int(time.time()))


def usage(results: Sequence[Sequence[Output]]) -> dict[str, Any]:
    """Return the token counts. A prompt with several completions counts once. Drafted tokens are
    reported if there were any, under OpenAI's names; rejected ones are not charged."""
    firsts = [outputs[0] for outputs in results if outputs]
    prompt = sum(output.stats.prompt_tokens for output in firsts)
    generated = sum(output.completion_tokens for outputs in results for output in outputs)
    found = usage_of(prompt, generated, sum(output.stats.cached_tokens for output in firsts))
    drafted = sum(output.stats.drafted_tokens for outputs in results for output in outputs)
    if drafted:
        accepted = sum(output.stats.accepted_tokens for outputs in results for output in outputs)
        found["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        }
    return found


def usage_of(prompt: int, generated: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": generated,
        "total_tokens": prompt + generated,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def usage_of_prompts(found: Sequence[Done]) -> dict[str, Any]:
    """Return the token counts of a request that generates nothing."""
    prompt = sum(done.stats.prompt_tokens for done in found)
    return usage_of(prompt, 0, sum(done.stats.cached_tokens for done in found))


def token_text(data: bytes) -> str:
    """Return the text of one token. An incomplete character is written as bytes, in OpenAI's
    notation."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def logprob_of(output: Output, place: int, table: Sequence[bytes]) -> dict[str, Any]:
    """Return the log-probabilities of token ``place`` and of the most likely tokens there, in the
    format of chats and responses. ``table``: the bytes of every token id."""

    def entry(token: int, value: float) -> dict[str, Any]:
        data = table[token] if token < len(table) else b""
        return {"token": data.decode("utf-8", "replace"), "logprob": value, "bytes": list(data)}

    tops = output.tops[place] if output.tops else []
    return {
        **entry(output.tokens[place], output.logprobs[place]),
        "top_logprobs": [entry(token, value) for token, value in tops],
    }


def finish_fields(output: Output, called: bool = False) -> dict[str, Any]:
    """Return ``finish_reason`` and, as an extension, the matched stop. ``called``: the text has
    tool calls."""
    if output.finish is None:
        return {"finish_reason": None}
    found: dict[str, Any] = {"finish_reason": output.finish.reason}
    if output.finish.reason == "length":
        found["matched_stop"] = None
    elif output.finish.reason == "stop":
        if called:
            found["finish_reason"] = "tool_calls"
        found["matched_stop"] = output.finish.matched
    elif output.finish.reason == "error":
        found["finish_message"] = output.finish.message
    return found


class Collected:
    """The outputs of a stream, for the usage that follows it."""

    def __init__(self, count: int) -> None:
        self._found: list[dict[int, Output]] = [{} for _ in range(count)]

    def note(self, index: int, output: Output) -> None:
        self._found[index][output.index] = output

    def usage(self) -> dict[str, Any]:
        return usage([list(outputs.values()) for outputs in self._found])
