"""Shapes: the types of the routes' answers, for /openapi.json.

The handlers answer plain data. Tests of the document verify that it has these shapes.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, TypeVar

from msgspec import UNSET, Struct, UnsetType
from sglang.srt.core.request_stats import Count
from sglang.srt.engine.info import EngineInfo
from sglang.srt.runtime.classification import Label

T = TypeVar("T")
Maybe: TypeAlias = T | UnsetType  # a field that may be absent
Object = dict[str, Any]


# -- errors ---------------------------------------------------------------------------------------


class Error(Struct):
    message: str
    type: str
    param: str | None
    code: str


class ErrorReply(Struct):
    error: Error


class AnthropicDetails(Struct):
    error_code: str


class AnthropicError(Struct):
    type: str
    message: str
    details: AnthropicDetails


class AnthropicErrorReply(Struct):
    type: Literal["error"]
    error: AnthropicError
    request_id: str | None


class OllamaErrorReply(Struct):
    error: str


class Event(Struct):
    """One event of a stream. ``data``: JSON, or ``[DONE]``. ``event``: type of the event, if the
    API has types. ``id``: for ``/generate``, the number of tokens so far."""

    data: str
    id: Maybe[str] = UNSET
    event: Maybe[str] = UNSET


# -- the server -----------------------------------------------------------------------------------


class Status(Struct):
    status: Literal["ok"]


class Told(Status):
    message: str


class DrainStatus(Struct):
    """``pending``: number of open requests. ``seconds_left``: seconds until they are ended; null
    before the drain."""

    draining: bool
    pending: Count
    seconds_left: float | None


class FleetEngine(Struct):
    """An engine. ``state``: "serving", "lost", "leaving", or "resting" while it is excluded for
    being far slower than the others. ``pending``: number of its current requests. ``routed``:
    number of requests sent to it so far, if there are several engines. ``max_total_num_tokens``:
    size of its KV cache."""

    name: str
    state: Literal["serving", "lost", "leaving", "resting"]
    pending: Count
    routed: Count
    restarts: Count
    max_total_num_tokens: Count


class FleetEngines(Struct):
    workers: list[FleetEngine]


class EngineRemoved(FleetEngines):
    """``moved``: number of requests that continue on other engines."""

    moved: Count


class Closed(Status):
    closed: bool


class Load(Struct):
    """Load of an engine: number of its requests, of waiting requests, and of KV tokens in use."""

    dp_rank: Literal[0]
    num_reqs: Count
    num_waiting_reqs: Count
    num_tokens: Count


class ServerVersion(Struct):
    version: str


class ServerProps(Struct):
    default_generation_settings: Object
    total_slots: Count
    model_path: str
    model_alias: str
    chat_template: str
    bos_token: str
    eos_token: str
    modalities: dict[str, bool]
    build_info: str


class ModelInfo(EngineInfo, frozen=True, kw_only=True):
    tokenizer_path: str
    served_model_name: str
    is_generation: bool
    constraints: list[str]
    scores_options: bool
    placeholders: dict[str, str]
    tool_format: str
    default_sampling_params: dict[str, float]


class ServerInfo(EngineInfo, frozen=True, kw_only=True):
    """Facts and statistics of the engine. The settings are added, each under its own name."""

    served_model_name: str
    open_requests: Count
    pending: Count
    stats: dict[str, float]
    internal_states: list[dict[str, float]]


class ModelCard(Struct):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None
    max_model_len: Count


class ModelCards(Struct):
    object: Literal["list"]
    data: list[ModelCard]


class Flushed(Struct):
    success: Literal[True]
    message: str


class AdaptersReply(Struct):
    """``loaded_adapters``: paths by name."""

    success: Literal[True]
    message: str
    loaded_adapters: dict[str, str]


class Aborted(Struct):
    success: Literal[True]
    aborted: Count


class LiveReply(Struct):
    tree: Object
    time: float
    uptime: float
    model: str
    pending: Count
    open_requests: Count
    programs: list[Object]
    more_programs: Count
    latency: dict[str, dict[str, float]]
    hour: list[dict[str, float]]


# -- tokens ---------------------------------------------------------------------------------------


class Tokenized(Struct):
    tokens: list[Count | list[Count]]
    count: Count | list[Count]
    max_model_len: Count
    token_strs: Maybe[list[str | list[str]]] = UNSET


class Detokenized(Struct):
    text: str | list[str]
    prompt: str | list[str]


class Rendered(Struct):
    prompt: str


class TokenizerInfo(Struct):
    vocab_size: Count
    special_tokens: dict[str, str]
    special_ids: list[Count]
    bos_token_id: int | None
    eos_token_ids: list[Count]
    chat_template: str | None
    model_max_length: Count


# -- usage --------------------------------------------------------------------------------------


class CachedTokens(Struct):
    cached_tokens: Count


class ReasoningTokens(Struct):
    reasoning_tokens: Count


class CompletionDetails(Struct):
    reasoning_tokens: Maybe[Count] = UNSET
    accepted_prediction_tokens: Maybe[Count] = UNSET
    rejected_prediction_tokens: Maybe[Count] = UNSET


class UsageReply(Struct):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: CachedTokens
    completion_tokens_details: Maybe[CompletionDetails] = UNSET


# -- prompts ---------------------------------------------------------------------------------------


class Classified(Struct):
    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[Label]
    usage: UsageReply


# -- scores ---------------------------------------------------------------------------------------


class LabelScoresReply(Struct, tag_field="object", tag="scoring"):
    scores: list[list[float]]
    model: str
    usage: UsageReply


class ScoreReply(Struct):
    index: Count
    object: Literal["score"]
    score: float


class ScoresReply(Struct, tag_field="object", tag="list"):
    id: str
    created: int
    model: str
    data: list[ScoreReply]
    usage: UsageReply


class Ranked(Struct):
    index: Count
    relevance_score: float


class RankingReply(Struct):
    id: str
    model: str
    results: list[Ranked]
    usage: UsageReply
