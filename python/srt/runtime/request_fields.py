"""Fields of requests: conversion of plain data to a request's struct, and refused fields.

The tables name the fields of upstream SGLang's requests that this runtime lacks. A field is refused
if it would change the answer, or the set of requests that share a cache; otherwise it is ignored.
The tables do not matter for a struct that declares the field: the struct supports it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec
from sglang.srt.requests.common_fields import verify_fields
from sglang.srt.requests.request_error import RequestError, shown

T = TypeVar("T", bound=msgspec.Struct)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)` - at `", re.DOTALL)

_FEATURES = {
    "a custom logit processor": "custom_logit_processor",
    "a session on this route (/generate has them)": "session_params",
    "hidden states on this route (/generate has them)": "return_hidden_states",
    "pooled hidden states in the answer": "return_pooled_hidden_states",
    "routed experts in the answer": "return_routed_experts routed_experts_start_len "
    "return_indexer_topk",
    "entropies in the answer": "return_entropy",
    "sampling masks in the answer": "return_sampling_mask",
    "flat arrays of log-probabilities": "return_flat_raw_top_logprobs "
    "return_flat_raw_top_logprobs_b64",
    "token ids in this route's answer": "return_token_ids return_prompt_token_ids",
    "meta_info in this route's answer": "return_meta_info",
    "a breakdown of cached tokens": "return_cached_tokens_details",
    "embeddings as the input": "input_embeds prompt_embeds positional_embed_overrides "
    "embed_overrides embed_override_token_id query_embed_overrides item_embed_overrides",
    "token ids as this route's prompt": "input_ids",
    "images and videos on this route": "image_data video_data",
    "audio": "audio audio_data use_audio_in_video",
    "a request's own setting of the image processor": "video_config images_config "
    "max_dynamic_patch min_dynamic_patch image_max_dynamic_patch video_max_dynamic_patch",
    "disaggregated serving": "bootstrap_host bootstrap_port bootstrap_room bootstrap_pair_key "
    "decode_tp_size disagg_prefill_dp_rank need_wait_for_mm_inputs num_items_assigned "
    "encoder_urls",
    "data parallelism": "routed_dp_rank data_parallel_rank",
    "scoring of several items in one prompt": "multi_item_delimiter_indices",
    "a cross-encoder": "is_cross_encoder",
    "a limit of the thought": "max_thinking_tokens",
    "a constraint behind a required thought": "require_reasoning",
    "text behind the completion": "suffix",
    "beam search": "use_beam_search",
    "a list of forbidden or allowed tokens": "bad_words allowed_token_ids",
    "web search": "web_search_options",
}
UNSUPPORTED: Mapping[str, str] = {
    name: feature for feature, names in _FEATURES.items() for name in names.split()
}
"""The missing feature of each refused field, by the field's name."""

_HARMLESS = {
    "names and labels for other programs": "user session_id conversation_id routing_key "
    "kv_router_hint custom_labels task metadata store service_tier safety_identifier "
    "prompt_cache_key verbosity input_type",
    "metrics, logs and traces, which have settings of their own": "log_metrics "
    "external_trace_header received_time",
    "speed alone": "ngram_corpus_id prediction mm_hashes mm_content_hashes",
    "parameters of a custom logit processor, which is refused itself": "custom_params",
    "known without": "modalities return_bytes background http_worker_ipc lora_id",
}
IGNORED = frozenset(name for names in _HARMLESS.values() for name in names.split())
"""Fields that change neither the answer nor which requests share a cache."""


def refuse_unsupported(body: Mapping[str, Any], declared: tuple[str, ...]) -> None:
    """Raise RequestError if ``body`` sets an unsupported field.

    ``declared``: the fields that the route supports.
    """
    for name in _set(body):
        if name not in declared:
            raise RequestError(
                f"{name} is set, and {UNSUPPORTED[name]} is not available in this version; remove "
                f"{name}.",
                name,
                "unsupported",
            )


def _set(body: Mapping[str, Any]) -> Iterator[str]:
    return (name for name in body if name in UNSUPPORTED and _given(body[name]))


def _given(value: Any) -> bool:
    """Whether a field's value has an effect. Null, false, 0 and empty values have none, nor has a
    list of such values; but an integer in a list, such as token id 0, has one."""
    if isinstance(value, list):
        return any(type(item) is int or _given(item) for item in value)
    return bool(value)


def convert(value: Any, kind: type[T]) -> T:
    """Convert plain data to the struct of a request, and verify the bounds of declared fields.

    Raises RequestError, naming the field.
    """
    if not isinstance(value, dict):
        raise RequestError("The body must be a JSON object.")
    refuse_unsupported(value, kind.__struct_fields__)
    if kind.__struct_config__.forbid_unknown_fields:
        _refuse_unknown(value, kind.__struct_encode_fields__)
    try:
        request = msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message = str(error)
        _, found, path = message.rpartition("`$.")
        param = re.split(r"[\[.`]", path)[0] if found else None
        if param is not None and (unknown := _UNKNOWN.match(message)):
            raise _unknown_field(kind, param, unknown[1]) from error
        raise RequestError(f"{message}.", param) from error
    except OverflowError as error:
        raise RequestError(f"A number is out of range: {error}.") from error
    verify_fields(request)
    return request


def _refuse_unknown(body: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in body:
        if name not in known:
            text = f"There is no field {shown(name)}; known are {', '.join(known) or 'none'}."
            raise RequestError(text, name)


def _unknown_field(kind: type[msgspec.Struct], param: str, name: str) -> RequestError:
    """Return the error for the unknown field ``name`` of the object in field ``param``."""
    [given] = [field for field in msgspec.structs.fields(kind) if field.encode_name == param]
    found = msgspec.inspect.type_info(given.type)
    options = found.types if isinstance(found, msgspec.inspect.UnionType) else (found,)
    structs = [one for one in options if isinstance(one, msgspec.inspect.StructType)]
    known = ", ".join(field.encode_name for one in structs for field in one.fields)
    return RequestError(
        f"{param} has an unknown field {shown(name)}; its fields are {known}.", f"{param}.{name}"
    )


def plain(answer: Any) -> Any:
    """Return the structs of an answer as dicts and lists, without unset fields."""
    return msgspec.to_builtins(answer)
