"""Fields that the requests of text and of chat completions share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from sglang.ir.declaration import Parameter
from sglang.ir.sampling import PARAMETERS, SamplingParams
from sglang.srt.requests import common_fields as fields
from sglang.srt.requests.completion.completion_request import sampling_from
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.constraint_fields import ConstraintFields, settings_of
from sglang.srt.runtime.engine_runtime import EngineRuntime


class StreamOptions(msgspec.Struct):
    """``stream_options``: null is false."""

    include_usage: Annotated[bool | None, None, "A last event has the usage."] = None
    continuous_usage_stats: Annotated[bool | None, None, "Every event has the usage so far."] = None


# Parameters with other names in OpenAI's API: max_tokens, min_tokens.
_RESPELLED = ("max_new_tokens", "min_new_tokens")
_SHARED = tuple(name for name in PARAMETERS if name not in _RESPELLED)


def _field_type(parameter: Parameter) -> Any:
    """Return the type of a sampling parameter in a body: null is unset, and a single stop string is
    as good as a list."""
    json_types = {
        tuple[str, ...]: str | list[str],
        tuple[int, ...]: list[int],
        dict[int, float]: dict[str, float],
    }
    kind = json_types.get(parameter.type, parameter.type)
    return Annotated[kind | None, parameter.bounds, parameter.description]


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


class CompletionFields(SamplingFields, kw_only=True):
    """Sampling parameters, constraints and further fields of a completion. Null is unset.

    Unknown fields without effect on the text are ignored. Unsupported fields that would change the
    text are refused (``request_fields``).
    """

    model: fields.Model | None = None
    max_tokens: fields.MaxTokens | None = None
    min_tokens: fields.MinTokens | None = None
    stream: fields.Stream | None = None
    stream_options: StreamOptions | None = None
    return_progress: fields.ReturnProgress | None = None
    user: str | None = None
    rid: fields.Rid | None = None
    priority: fields.Priority | None = None
    cache_salt: fields.CacheSalt | None = None
    extra_key: fields.ExtraKey | None = None
    lora_path: fields.LoraPath | None = None
    masked_logprobs: fields.MaskedLogprobs | None = None


def sampling_of(body: CompletionFields, max_tokens: int) -> SamplingParams:
    """Return the body's sampling parameters. Raises RequestError."""
    names = (*_SHARED, "min_tokens")
    settings = {name: value for name in names if (value := getattr(body, name)) is not None}
    return sampling_from({**settings, **settings_of(body), "max_new_tokens": max_tokens})


def refuse(name: str, value: Any) -> None:
    """Raise RequestError if ``value``, of the unsupported field ``name``, is set."""
    if value:
        raise RequestError(
            f"{name} is not available in this version; remove it.", name, "unsupported"
        )


def hidden_of(runtime: EngineRuntime, body: CompletionFields) -> frozenset[int]:
    """Return the ids of control tokens that are left out of the text."""
    return frozenset() if body.skip_special_tokens is False else runtime.tokenizer.special_ids
