"""Fields that the requests of text and of chat completions share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sglang.ir.declaration import Parameter
from sglang.ir.sampling import PARAMETERS, SamplingParams
from sglang.srt.requests.completion.completion_request import sampling_from
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.constraint_fields import ConstraintFields, settings_of
from sglang.srt.runtime.engine_runtime import EngineRuntime


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


class CompletionFields(SamplingFields, kw_only=True):
    """The sampling parameters, the constraints, and these. Null is unset.

    Other fields are ignored where they have no effect; a field that would change the text and
    cannot be honoured is refused (``request_fields``).
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


def sampling_of(body: CompletionFields, max_tokens: int) -> SamplingParams:
    """The body's sampling parameters. Raises RequestError."""
    names = (*_SHARED, "min_tokens")
    settings = {name: value for name in names if (value := getattr(body, name)) is not None}
    return sampling_from({**settings, **settings_of(body), "max_new_tokens": max_tokens})


def refuse(name: str, value: Any) -> None:
    """Raise RequestError where a field that cannot be honoured is set."""
    if value:
        raise RequestError(
            f"{name} is not available in this version; remove it.", name, "unsupported"
        )


def hidden_of(runtime: EngineRuntime, body: CompletionFields) -> frozenset[int]:
    """Ids of control tokens that the text does not show."""
    return frozenset() if body.skip_special_tokens is False else runtime.tokenizer.special_ids
