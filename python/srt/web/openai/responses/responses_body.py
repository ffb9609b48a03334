"""The body of POST /v1/responses, and its conversion to a chat request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from sglang.ir.declaration import Bounds
from sglang.srt.requests.common_fields import ReplyTokens, SeparateReasoning, StreamReasoning
from sglang.srt.requests.request_error import RequestError, Reworded
from sglang.srt.runtime.completion_fields import CompletionFields, refuse
from sglang.srt.runtime.conversations.chat_request import MAX_CALLS, ChatRequest
from sglang.srt.runtime.parking.kv_hints import KvHintsField
from sglang.srt.web.openai.responses.responses_tools import chat_tools, choice_of, tools_of

LOGPROBS = "message.output_text.logprobs"
# Accepted values of `include`. Except LOGPROBS, no answer of this server has these parts.
INCLUDES = (
    LOGPROBS, "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results",
    "web_search_call.action.sources", "message.input_image.image_url",
    "computer_call_output.output.image_url", "code_interpreter_call.outputs",
)  # fmt: skip
_INSTEAD = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "functions": "tools",
    "logprobs": f'include: ["{LOGPROBS}"]',
    "conversation": "previous_response_id",
}
_UNAVAILABLE = ("prompt", "context_management", "moderation")
MAX_METADATA, MAX_KEY, MAX_VALUE = 16, 64, 512  # most entries; most characters of key and value
MAX_NAME = 512  # most characters of a field that the answer repeats
Echoed = Annotated[str, Bounds(characters=MAX_NAME, empty=True), "The answer repeats it."]


class ResponsesBody(CompletionFields, kw_only=True):
    """``input``: text or a list of items. ``max_output_tokens``: unset means as many as fit the
    context."""

    input: Any = None
    instructions: str | None = None
    previous_response_id: str | None = None
    max_output_tokens: ReplyTokens | None = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Annotated[
        int | None,
        Bounds(1),
        f"Calls of the server's own tools (`toolbox`), at most {MAX_CALLS} of which are run; "
        "`--toolbox-max-calls` by default.",
    ] = None
    kv_hints: KvHintsField | None = None
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    include: list[str] | None = None
    top_logprobs: int | None = None
    truncation: str | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    model: Echoed | None = None
    user: Echoed | None = None
    safety_identifier: Echoed | None = None
    prompt_cache_key: Echoed | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: Any = None
    separate_reasoning: SeparateReasoning | None = None
    stream_reasoning: StreamReasoning | None = None
    # Fields of other APIs, and unsupported fields.
    messages: Any = None
    max_completion_tokens: Any = None
    reasoning_effort: Any = None
    functions: Any = None
    logprobs: Any = None
    conversation: Any = None
    prompt: Any = None
    context_management: Any = None
    moderation: Any = None

    @property
    def kept(self) -> bool:
        """Whether the answer is stored."""
        return self.store is not False

    @property
    def effort(self) -> str | None:
        found: str | None = (self.reasoning or {}).get("effort")
        return found


def check(body: ResponsesBody) -> None:
    """Raise RequestError for fields of other APIs, unsupported fields, and values out of range."""
    for name, instead in _INSTEAD.items():
        if getattr(body, name):
            raise RequestError(
                f"{name} is not available in /v1/responses; use {instead}.", name, "unsupported"
            )
    for name in _UNAVAILABLE:
        refuse(name, getattr(body, name))
    if body.n not in (None, 1):
        raise RequestError(f"n is {body.n}; a response is one completion. Remove it.", "n")
    if body.truncation not in (None, "disabled"):
        raise RequestError(
            f"truncation is {body.truncation!r:.60}; only disabled is available.",
            "truncation",
            "unsupported",
        )
    if body.background and not body.kept:
        raise RequestError("background needs store; remove store: false.", "store")
    for entry in body.include or []:
        if entry not in INCLUDES:
            raise RequestError(f"include has {entry!r:.80}; use {', '.join(INCLUDES)}.", "include")
    if not isinstance(body.effort, str | None):
        raise RequestError("reasoning.effort must be text.", "reasoning")
    _check_metadata(body)


def _check_metadata(body: ResponsesBody) -> None:
    metadata = body.metadata or {}
    if len(metadata) > MAX_METADATA:
        raise RequestError(
            f"metadata has {len(metadata)} entries; at most {MAX_METADATA}.", "metadata"
        )
    for key, value in metadata.items():
        if len(key) > MAX_KEY or len(value) > MAX_VALUE:
            raise RequestError(
                f"metadata[{key!r:.70}] is too long; a key has at most {MAX_KEY} characters, a "
                f"value {MAX_VALUE}.",
                "metadata",
            )


def chat_of(body: ResponsesBody, messages: list[dict[str, Any]]) -> ChatRequest:
    """Return the body as a chat request with these messages. Raises RequestError."""
    shared = {name: getattr(body, name) for name in CompletionFields.__struct_fields__}
    tools = tools_of(body.tools)
    functions, choice = chat_tools(tools, choice_of(body.tool_choice, tools))
    shared["response_format"] = _format(body)
    logprobs = LOGPROBS in (body.include or []) or bool(body.top_logprobs)
    return ChatRequest(
        **shared,
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        logprobs=logprobs or None,
        top_logprobs=body.top_logprobs,
        chat_template=body.chat_template,
        chat_template_kwargs=body.chat_template_kwargs,
        reasoning_effort=body.effort,
        separate_reasoning=body.separate_reasoning,
        stream_reasoning=body.stream_reasoning,
        kv_hints=body.kv_hints,
        tools=functions,
        tool_choice=choice,
        parallel_tool_calls=body.parallel_tool_calls,
        max_calls=None if body.max_tool_calls is None else min(body.max_tool_calls, MAX_CALLS),
    )


def format_of(body: ResponsesBody) -> dict[str, Any]:
    """Return ``text.format``; plain text is the default. Raises RequestError."""
    given = (body.text or {}).get("format")
    if given is None:
        return {"type": "text"}
    if not isinstance(given, dict):
        raise RequestError(f"text.format is {given!r:.60}; give an object.", "text.format")
    if given.get("type") == "structural_tag":
        return given
    if given.get("type") != "json_schema":
        return {"type": given.get("type")}
    if not isinstance(given.get("schema"), (dict, bool)):
        raise RequestError("text.format.schema is missing; give a JSON schema.", "text.format")
    name = given.get("name")
    if not isinstance(name, str | None) or len(name or "") > MAX_NAME:
        raise RequestError(
            f"text.format.name must be a text of at most {MAX_NAME} characters.", "text.format"
        )
    strict = given.get("strict") is not False  # enforced in any case
    return {"type": "json_schema", "name": name or "", "schema": given["schema"], "strict": strict}


def _format(body: ResponsesBody) -> dict[str, Any] | None:
    """Return ``text.format`` as a chat's ``response_format``, None if it is not given."""
    if not (body.text or {}).get("format"):
        return None
    given = format_of(body)
    if given.get("type") != "json_schema":
        return given
    return {"type": "json_schema", "json_schema": {"schema": given["schema"]}}


_PARAMS: Mapping[str, str] = {
    "messages": "input",
    "prompt": "input",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}


def in_own_words() -> Reworded:
    """Return a block that renames the fields in a chat's errors to this API's fields."""
    return Reworded(_in_own_words)


def _in_own_words(error: RequestError) -> RequestError:
    message, param = error.message, error.param or ""
    if param in ("tools", "tool_choice"):
        message = message.replace(".function.", ".")
    elif param in _PARAMS:
        message = message.replace(param, _PARAMS[param])
    return error.reworded(message, _PARAMS.get(param, param) or None)
