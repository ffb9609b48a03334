"""Golden requests: what each says is the same to the byte, whatever goes on beside it."""

from __future__ import annotations

from typing import Any

from helpers.apis import user

Json = dict[str, Any]

_DOCUMENT = "Mara Fox is 34 years old and lives in Oslo. She has a red lamp and a blue rope. " * 4
_SHEET = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
_TOOL = {
    "type": "function",
    "function": {
        "name": "paint",
        "parameters": {
            "type": "object",
            "properties": {"colour": {"enum": ["red", "green", "blue"]}},
            "required": ["colour"],
            "additionalProperties": False,
        },
    },
}
_GREEDY = {"max_new_tokens": 24, "temperature": 0, "ignore_eos": True}
_CHAT = {"messages": user(f"{_DOCUMENT}Where does Mara live?"), "max_tokens": 16}

GOLDENS: list[tuple[str, Json]] = [
    ("/generate", {"text": _DOCUMENT + "What", "sampling_params": _GREEDY}),
    ("/generate", {"text": "Tell me", "return_logprob": True, "top_logprobs_num": 3,
                   "logprob_start_len": 0, "sampling_params": {**_GREEDY, "n": 3, "seed": 5,
                                                               "temperature": 1.2, "top_p": 0.9}}),
    ("/generate", {"text": "A number:", "sampling_params": {
        "regex": "[0-9]{3}-[a-f]{2,6}", "seed": 3, "max_new_tokens": 40}}),
    ("/generate", {"text": "It is", "sampling_params": {
        "choices": [" red", " blue and green", " yellow"], "choices_scoring": "whole",
        "temperature": 0}}),
    ("/generate", {"parts": ["Tips.\n", ["Sleep well.\n", "Eat fruit.\n"], "In short:"],
                   "sampling_params": _GREEDY}),
    ("/generate", {"text": f"{_DOCUMENT}As JSON:", "sampling_params": {
        "json_schema": _SHEET, "temperature": 0, "max_new_tokens": 80}}),
    ("/v1/completions", {"prompt": [_DOCUMENT, "Question: What is 17 + 25?\nAnswer:"], "echo": True,
                         "logprobs": 2, "max_tokens": 12, "temperature": 0}),
    ("/v1/chat/completions", {**_CHAT, "temperature": 0.8, "seed": 11, "n": 2, "logprobs": True}),
    ("/v1/chat/completions", {**_CHAT, "tools": [_TOOL], "tool_choice": "required", "seed": 2,
                              "parallel_tool_calls": False, "max_tokens": 64}),
    ("/v1/messages", {**_CHAT, "temperature": 0}),
    ("/v1/responses", {"input": f"{_DOCUMENT}What does Mara have?", "store": False,
                       "max_output_tokens": 16, "temperature": 0}),
    ("/v1/embeddings", {"input": [_DOCUMENT, "the lamp is lit"], "pooling": "mean"}),
    ("/v1/embeddings", {"input": [_DOCUMENT, "the rope is long"]}),
    ("/v1/score", {"query": _DOCUMENT, "items": [" yes", " no"], "label_token_ids": [10, 11, 12]}),
    ("/v1/rerank", {"query": "a lamp", "documents": ["the lamp is lit", "the rope is long"]}),
    ("/tokenize", {"prompt": [_DOCUMENT, "Tips."]}),
]  # fmt: skip

# Fields that may differ: names, times, and the way in which the tokens were computed.
_VOLATILE = {
    "id", "created", "created_at", "completed_at", "call_id", "usage", "e2e_latency",
    "cached_tokens", "loaded_tokens", "disk_tokens", "forward_passes", "forced_tokens",
    "drafted_tokens", "accepted_tokens",
}  # fmt: skip


def essence(value: Any) -> Any:
    """An answer without what may differ."""
    if isinstance(value, list):
        return [essence(item) for item in value]
    if isinstance(value, dict):
        return {name: essence(item) for name, item in value.items() if name not in _VOLATILE}
    return value
