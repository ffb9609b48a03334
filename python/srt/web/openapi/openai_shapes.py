"""Shapes of the answers of OpenAI's and Anthropic's routes; ``native_shapes`` has the others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct
from sglang.srt.core.request_stats import Count
from sglang.srt.requests.completion.output import HintAnswer
from sglang.srt.web.openapi.native_shapes import (
    CachedTokens,
    Maybe,
    Object,
    ReasoningTokens,
    UsageReply,
)

# -- OpenAI's -------------------------------------------------------------------------------------


class CompletionLogprobs(Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[Count]


class ChoiceReply(Struct, kw_only=True):
    """``matched_stop``: the stop that matched, if any. ``finish_message``: why no token could
    follow, if ``finish_reason`` is "error"."""

    index: Count
    finish_reason: Literal["stop", "length", "abort", "error", "tool_calls", "function_call"]
    matched_stop: Maybe[str | int | None] = UNSET
    finish_message: Maybe[str] = UNSET


class CompletionChoice(ChoiceReply, kw_only=True):
    text: str
    logprobs: CompletionLogprobs | None


class CompletionReply(Struct):
    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageReply


class TokenLogprob(Struct):
    token: str
    logprob: float
    bytes: list[Annotated[int, Meta(ge=0, le=255)]]


class TopLogprob(TokenLogprob):
    top_logprobs: list[TokenLogprob]


class ChatLogprobs(Struct):
    content: list[TopLogprob]
    refusal: None


class FunctionCall(Struct):
    name: str
    arguments: str


class ToolCall(Struct):
    id: str
    type: Literal["function"]
    function: FunctionCall


class ChatMessage(Struct):
    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: Maybe[list[ToolCall]] = UNSET
    function_call: Maybe[FunctionCall] = UNSET
    reasoning_content: Maybe[str | None] = UNSET
    toolbox_messages: Maybe[list[dict[str, Any]]] = UNSET


class ChatChoice(ChoiceReply, kw_only=True):
    message: ChatMessage
    logprobs: ChatLogprobs | None


class ChatCompletion(Struct):
    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageReply
    kv_hints: Maybe[list[HintAnswer]] = UNSET


class EmbeddingReply(Struct):
    """``embedding``: a list of numbers or, if requested, base64 of little-endian float32."""

    object: Literal["embedding"]
    index: Count
    embedding: list[float] | str


class Embeddings(Struct):
    object: Literal["list"]
    data: list[EmbeddingReply]
    model: str
    usage: UsageReply


class ResponseUsage(Struct):
    input_tokens: Count
    input_tokens_details: CachedTokens
    output_tokens: Count
    output_tokens_details: ReasoningTokens
    total_tokens: Count


class Response(Struct):
    """One response. It also repeats the request's fields, each under its own name."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["queued", "in_progress", "completed", "incomplete", "cancelled", "failed"]
    completed_at: int | None
    error: Object | None
    incomplete_details: Object | None
    model: str
    output: list[Object]
    usage: ResponseUsage | None
    kv_hints: Maybe[list[HintAnswer]] = UNSET


class InputTokens(Struct):
    object: Literal["response.input_tokens"]
    input_tokens: Count


class Deleted(Struct):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class Items(Struct):
    object: Literal["list"]
    data: list[Object]
    first_id: str | None
    last_id: str | None
    has_more: bool


# -- Anthropic's ----------------------------------------------------------------------------------


class MessageUsage(Struct):
    input_tokens: Count
    cache_creation_input_tokens: Count
    cache_read_input_tokens: Count
    output_tokens: Count


class MessageReply(Struct):
    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[Object]
    stop_reason: Literal[
        "end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal",
        "model_context_window_exceeded",
    ]  # fmt: skip
    stop_sequence: str | None
    usage: MessageUsage
    kv_hints: Maybe[list[HintAnswer]] = UNSET


class CountedTokens(Struct):
    input_tokens: Count
