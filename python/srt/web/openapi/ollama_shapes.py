"""Shapes of the answers of Ollama's routes; ``native_shapes`` has those of the native routes."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import UNSET, Struct
from sglang.srt.core.request_stats import Count
from sglang.srt.web.openapi.native_shapes import Maybe, Object
from sglang.srt.web.openapi.openai_shapes import TopLogprob


class OllamaEnd(Struct, kw_only=True):
    """A whole reply, or the last line of a stream. Counts and times are left out if nothing was
    generated; times are in nanoseconds."""

    model: str
    created_at: str
    done: Literal[True]
    done_reason: Literal["stop", "length", "abort", "load", "unload"]
    logprobs: Maybe[list[TopLogprob]] = UNSET
    total_duration: Maybe[Count] = UNSET
    load_duration: Maybe[Count] = UNSET
    prompt_eval_count: Maybe[Count] = UNSET
    prompt_eval_duration: Maybe[Count] = UNSET
    eval_count: Maybe[Count] = UNSET
    eval_duration: Maybe[Count] = UNSET


class OllamaCalled(Struct):
    id: str
    function: Object


class OllamaAnswer(Struct):
    role: Literal["assistant"]
    content: str
    thinking: Maybe[str] = UNSET
    tool_calls: Maybe[list[OllamaCalled]] = UNSET


class OllamaChatReply(OllamaEnd, kw_only=True):
    message: OllamaAnswer


class OllamaGenerateReply(OllamaEnd, kw_only=True):
    response: str
    thinking: Maybe[str] = UNSET


class OllamaEmbedded(Struct):
    model: str
    embeddings: list[list[float]]
    total_duration: Maybe[Count] = UNSET
    load_duration: Maybe[Count] = UNSET
    prompt_eval_count: Maybe[Count] = UNSET


class OllamaEmbedding(Struct):
    embedding: list[float]


class OllamaDetails(Struct):
    parent_model: str
    format: Literal["safetensors"]
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Struct, kw_only=True):
    name: str
    model: str
    size: Count
    digest: str
    details: OllamaDetails


class OllamaTag(OllamaModel, kw_only=True):
    modified_at: str


class OllamaRunning(OllamaModel, kw_only=True):
    expires_at: str
    size_vram: Count
    context_length: Count


class OllamaTags(Struct):
    models: list[OllamaTag]


class OllamaProcesses(Struct):
    models: list[OllamaRunning]


class OllamaShown(Struct):
    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[Literal["completion", "embedding", "tools", "vision", "thinking"]]
    modified_at: str


class OllamaVersion(Struct):
    version: str


class OllamaPulled(Struct):
    status: Literal["success"]
