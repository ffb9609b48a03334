"""What the two OpenAI completion routes share: fields, refusals, usage, finish reasons."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from sglang.ir.sampling import PARAMETERS, Parameter, SamplingParams
from sglang.srt.core.messages import Done
from sglang.srt.http.openai.constraint_fields import ConstraintFields, settings_of
from sglang.srt.http.server_state import ServerState
from sglang.srt.http.telemetry.request_record import record
from sglang.srt.program.ask import sampling_from
from sglang.srt.program.output import Output
from sglang.srt.program.request_error import RequestError


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


# Parameters that OpenAI spells otherwise: max_tokens, min_tokens.
_RESPELLED = ("max_new_tokens", "min_new_tokens")
_SHARED = tuple(name for name in PARAMETERS if name not in _RESPELLED)


def _field_type(parameter: Parameter) -> Any:
    """Type of a sampling parameter in a body: null is unset, one stop may stand for a list."""
    json_types = {
        tuple[str, ...]: str | list[str],
        tuple[int, ...]: list[int],
        dict[int, float]: dict[str, float],
    }
    return json_types.get(parameter.type, parameter.type) | None


if TYPE_CHECKING:

    class SamplingFields(ConstraintFields, kw_only=True):
        def __getattr__(self, name: str) -> Any: ...

else:
    SamplingFields = msgspec.defstruct(
        "SamplingFields",
        [(name, _field_type(PARAMETERS[name]), None) for name in _SHARED],
        bases=(ConstraintFields,),
        kw_only=True,
    )


class SharedBody(SamplingFields, kw_only=True):
    """Fields of both routes: the sampling parameters, the constraints, and these. Null is unset.

    Other fields are ignored, as OpenAI's own without effect here are; a field that would change the
    text and cannot be honoured is refused (``wire/unsupported``).
    """

    model: str | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    rid: str | None = None
    priority: int | None = None
    cache_salt: str | None = None
    extra_key: str | None = None
    lora_path: str | None = None
    masked_logprobs: bool | None = None


def sampling_of(body: SharedBody, max_tokens: int) -> SamplingParams:
    """The body's sampling parameters. Raises RequestError."""
    settings = {name: getattr(body, name) for name in (*_SHARED, "min_tokens")}
    return sampling_from({**settings, **settings_of(body), "max_new_tokens": max_tokens})


def refuse(name: str, value: Any) -> None:
    """Raise RequestError where a field that cannot be honoured is set."""
    if value:
        raise RequestError(
            f"{name} is not available in this version; remove it.", name, "unsupported"
        )


def hidden_of(state: ServerState, body: SharedBody) -> frozenset[int]:
    """Ids of control tokens that the text does not show."""
    return frozenset() if body.skip_special_tokens is False else state.runtime.tokenizer.special_ids


class Reply(msgspec.Struct):
    """What every object of one answer carries."""

    id: str
    model: str
    created: int

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def new_reply(state: ServerState, body: SharedBody, prefix: str) -> Reply:
    name = record().response_id = body.rid or f"{prefix}-{uuid.uuid4().hex}"
    return Reply(name, body.model or state.runtime.model_name, int(time.time()))


def usage(results: Sequence[Sequence[Output]]) -> dict[str, Any]:
    """Token counts; a prompt with several completions counts once. Tokens guessed ahead are told
    where there were any, under OpenAI's names; those that were rejected cost nothing."""
    firsts = [outputs[0] for outputs in results if outputs]
    prompt = sum(output.stats.prompt_tokens for output in firsts)
    drawn = sum(output.completion_tokens for outputs in results for output in outputs)
    found = usage_of(prompt, drawn, sum(output.stats.cached_tokens for output in firsts))
    drafted = sum(output.stats.drafted_tokens for outputs in results for output in outputs)
    if drafted:
        accepted = sum(output.stats.accepted_tokens for outputs in results for output in outputs)
        found["completion_tokens_details"] = {
            "accepted_prediction_tokens": accepted,
            "rejected_prediction_tokens": drafted - accepted,
        }
    return found


def usage_of(prompt: int, drawn: int, cached: int) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": drawn,
        "total_tokens": prompt + drawn,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def usage_of_prompts(found: Sequence[Done]) -> dict[str, Any]:
    """Token counts of a request that generates nothing."""
    prompt = sum(done.stats.prompt_tokens for done in found)
    return usage_of(prompt, 0, sum(done.stats.cached_tokens for done in found))


def logprob_of(output: Output, place: int, table: Sequence[bytes]) -> dict[str, Any]:
    """The log-probability of a token, as chats and responses have it, beside those of the most
    likely; ``table`` has the bytes of every token."""

    def entry(token: int, value: float) -> dict[str, Any]:
        data = table[token] if token < len(table) else b""
        return {"token": data.decode("utf-8", "replace"), "logprob": value, "bytes": list(data)}

    tops = output.tops[place] if output.tops else []
    return {
        **entry(output.tokens[place], output.logprobs[place]),
        "top_logprobs": [entry(token, value) for token, value in tops],
    }


def finish_fields(output: Output, called: bool = False) -> dict[str, Any]:
    """``finish_reason`` and, as an addition, what the stop matched; ``called``: the text has calls
    of tools."""
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


class Progress:
    """How much of one completion a stream has sent."""

    def __init__(self) -> None:
        self.chars = self.tokens = self.drawn = 0
        self.begun = False

    def ready(self, output: Output, interval: int) -> bool:
        """Whether it is time for a chunk."""
        if output.finish is not None:
            return True
        due = not self.begun or output.completion_tokens - self.drawn >= interval
        return due and len(output.text) > self.chars

    def take(self, output: Output) -> tuple[str, range]:
        """The text not sent yet and the tokens that belong to it."""
        text, tokens = output.text[self.chars :], range(self.tokens, output.released)
        self.chars, self.tokens = len(output.text), output.released
        self.drawn, self.begun = output.completion_tokens, True
        return text, tokens


class Collected:
    """The outputs of a stream, for the usage that follows it."""

    def __init__(self, count: int) -> None:
        self._found: list[dict[int, Output]] = [{} for _ in range(count)]

    def note(self, index: int, output: Output) -> None:
        self._found[index][output.index] = output

    def usage(self) -> dict[str, Any]:
        return usage([list(outputs.values()) for outputs in self._found])
