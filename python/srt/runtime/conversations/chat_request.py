"""Chat requests of all APIs: their fields, their validation and the reading of replies.

``/v1/chat/completions``, ``/v1/responses`` and ``/v1/messages`` differ only in syntax. Each route
makes a ``ChatRequest``, converts it to a ``ChatCall`` with ``read_chat``, and writes in its own
syntax the ``Delta``s that the call's ``ReplyReader``s return.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Annotated, Any

from sglang.ir.declaration import Bounds
from sglang.ir.sampling import MAX_TOP_LOGPROBS
from sglang.semantics.tool_calls.tool_format import constraint_of, form_of
from sglang.srt.requests.common_fields import ReplyTokens, SeparateReasoning, StreamReasoning
from sglang.srt.requests.completion.completion_request import (
    CompletionRequest,
    Logprobs,
    namespace_of,
)
from sglang.srt.requests.completion.output import Output
from sglang.srt.requests.replies.reasoning_parser import behind_thought, opened
from sglang.srt.requests.request_error import RequestError, Reworded
from sglang.srt.runtime.caller import Caller
from sglang.srt.runtime.completion_fields import CompletionFields, refuse, sampling_of
from sglang.srt.runtime.conversations.conversation import (
    ChatPrompt,
    Tokenizing,
    prompt_of,
    verify_template,
)
from sglang.srt.runtime.conversations.reply_reader import ReplyReader, ThoughtReading
from sglang.srt.runtime.conversations.tool_use import ToolUse, read_functions, read_tools, verified
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.offload import entries, offload
from sglang.srt.runtime.parking.kv_hints import KvHints, KvHintsField
from sglang.srt.runtime.prompt_progress import reporting

MAX_CALLS = 128
MaxCalls = Annotated[
    int,
    Bounds(1, MAX_CALLS),
    "Calls of the server's own tools (`toolbox`); `--toolbox-max-calls` by default.",
]
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

__all__ = [
    "MAX_CALLS",
    "ChatCall",
    "ChatRequest",
    "MaxCalls",
    "ReplyReader",
    "ThoughtReading",
    "read_chat",
    "thought_tokens",
]


class ChatRequest(CompletionFields, kw_only=True):
    """A conversation and the settings of its reply. Null is unset."""

    messages: list[dict[str, Any]]
    max_tokens: ReplyTokens | None = None
    max_completion_tokens: ReplyTokens | None = None
    logprobs: Annotated[
        bool | None, None, "Log-probabilities of the generated tokens come too."
    ] = None
    top_logprobs: Annotated[
        int | None,
        None,
        f"Most likely tokens beside each token's own, at most {MAX_TOP_LOGPROBS}.",
    ] = None
    continue_final_message: Annotated[
        bool | None, None, "The reply continues the last message."
    ] = None
    add_generation_prompt: Annotated[
        bool | None, None, "The prompt ends with what a reply begins with; true by default."
    ] = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: Any = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: Annotated[
        bool | None, None, "The reply may have several calls; true by default."
    ] = None
    max_calls: MaxCalls | None = None
    kv_hints: KvHintsField | None = None
    functions: list[Any] | None = None
    function_call: str | dict[str, Any] | None = None
    reasoning_effort: Annotated[
        str | None, Bounds(one_of=EFFORTS), "Reasoning effort, for the chat template."
    ] = None
    reasoning: dict[str, Any] | None = None
    separate_reasoning: SeparateReasoning | None = None
    stream_reasoning: StreamReasoning | None = None
    modalities: list[str] | None = None


@dataclass(frozen=True)
class ChatCall:
    """A chat as a CompletionRequest, and the rules to read its reply.

    Attributes:
        use: the tools; None if no call may be made.
        thinking: rules to read the reasoning; None if it is not separated from the answer.
        source: the prompt's text (``ChatPrompt.source``).
        hints: hints for the KV of the context when the reply ends; None: no hint was given.
    """

    request: CompletionRequest
    use: ToolUse | None
    thinking: ThoughtReading | None = None
    source: str = ""
    hints: KvHints | None = None

    @property
    def legacy(self) -> bool:
        """Whether a call is written as the legacy field ``function_call``."""
        return self.use is not None and self.use.legacy

    def reader(self) -> ReplyReader:
        """Return a new reader for one of the request's completions."""
        return ReplyReader(self.use, self.thinking)

    def named(self) -> AbstractContextManager[None]:
        """Return a block for the run that adds the tool's index to errors about a tool."""
        use, form = self.use, self.request.sampling.constraint
        return nullcontext() if use is None else Reworded(lambda error: use.named(error, form))


def thought_tokens(
    runtime: EngineRuntime, call: ChatCall, output: Output, reader: ReplyReader
) -> int:
    """Return the number of reasoning tokens that ``reader`` has read in ``output``."""
    if call.thinking is None:
        return 0
    tokenizer = runtime.tokenizer
    hidden = tokenizer.special_ids if call.request.sampling.skip_special_tokens else frozenset()
    return reader.thought_tokens(output, tokenizer.token_bytes, hidden)


async def read_chat(
    runtime: EngineRuntime,
    body: ChatRequest,
    fits: bool = True,
    caller: Caller | None = None,
    owner: str = "",
) -> ChatCall:
    """Return a chat request as a ChatCall. Raises RequestError.

    Args:
        fits: refuse a prompt that is too long for the model.
        caller: the prompt may continue a parked context of this caller; None: it continues none.
        owner: tenant whose share of fetches the media take, if ``caller`` is None.
    """
    _verify(body)
    adapter = runtime.adapters.of(body.model, body.lora_path)
    use = await offload(entries([body.tools, body.functions]), _use, runtime, body)
    sampling = sampling_of(body, _limit(runtime, body))
    own = sampling.constraint
    form = None if use is None else use.form(own)
    salt = namespace_of(body.cache_salt, body.extra_key)
    scope = None if caller is None else runtime.scope(caller, salt, adapter)
    owner = owner if caller is None else caller.tenant
    prompt = await prompt_of(
        runtime, body.messages, use, _variables(body), body.add_generation_prompt,
        bool(body.continue_final_message), Tokenizing(fits, scope, owner),
    )  # fmt: skip
    inside = _inside(runtime, body, prompt)
    constraint, behind = own, False
    if form is None and own is not None and inside is not False:
        form = form_of(own)
    if form is not None:
        # Triggered tags allow free text, and so the thought too: they need no change.
        behind = inside is not False and form["type"] != "triggered_tags"
        if behind and runtime.thought_marks is not None:
            form = behind_thought(runtime.thought_marks, inside, form)
        space = own.whitespace if use is None and own is not None else " ?"
        constraint = verified(constraint_of(form, space))
    thinking = _thinking(runtime, body, inside, behind)
    sampling = replace(
        sampling,
        constraint=constraint,
        skip_special_tokens=sampling.skip_special_tokens and not _shown(runtime, use, thinking),
    )
    whole = body.choices_scoring == "whole"
    request = CompletionRequest(
        prompt.ids, sampling, _logprobs(body), body.rid or "", body.priority or 0, salt,
        score_choices=whole, media=prompt.media, adapter=adapter, resumed=prompt.resumed,
    )  # fmt: skip
    if body.return_progress:
        request = reporting(request)
    return ChatCall(request, use, thinking, prompt.source, body.kv_hints)


def _verify(body: ChatRequest) -> None:
    verify_template(body.chat_template, body.chat_template_kwargs or {})
    if set(body.modalities or ["text"]) != {"text"}:
        refuse("modalities", body.modalities)
    if body.kv_hints is not None:
        body.kv_hints.verify()
        if (body.n or 1) != 1:
            raise RequestError(
                f"n is {body.n}; with kv_hints it must be 1.", "kv_hints", "unsupported"
            )
    name, effort = _effort(body)
    if effort is not None and effort not in EFFORTS:
        raise RequestError(f"{name} is {effort!r:.60}; use one of {', '.join(EFFORTS)}.", name)
    enabled = (body.reasoning or {}).get("enabled")
    if not isinstance(enabled, bool | None):
        raise RequestError(
            f"reasoning.enabled is {enabled!r:.60}; give true or false.", "reasoning.enabled"
        )


def _effort(body: ChatRequest) -> tuple[str, Any]:
    """Return name and value of the field that gives the reasoning effort."""
    if body.reasoning_effort is not None or body.reasoning is None:
        return "reasoning_effort", body.reasoning_effort
    return "reasoning.effort", body.reasoning.get("effort")


def _use(runtime: EngineRuntime, body: ChatRequest) -> ToolUse | None:
    legacy = {"functions": body.functions, "function_call": body.function_call}
    if not any(legacy.values()):
        return read_tools(
            body.tools, body.tool_choice, body.parallel_tool_calls, runtime.tool_format
        )
    if body.tools or body.tool_choice:
        name = next(name for name, value in legacy.items() if value)
        raise RequestError(f"tools and {name} exclude one another; give tools.", name)
    return read_functions(body.functions, body.function_call, runtime.tool_format)


def _limit(runtime: EngineRuntime, body: ChatRequest) -> int:
    for name in ("max_completion_tokens", "max_tokens"):
        limit: int | None = getattr(body, name)
        if limit is not None:
            return limit
    return runtime.info.context_length


def _logprobs(body: ChatRequest) -> Logprobs | None:
    if body.logprobs:
        return Logprobs(top=body.top_logprobs or 0, masked=bool(body.masked_logprobs))
    if body.top_logprobs:
        raise RequestError("top_logprobs needs logprobs: true.", "top_logprobs")
    return None


def _variables(body: ChatRequest) -> dict[str, Any]:
    """Return the template's variables. Effort and ``reasoning.enabled`` are converted to the
    variables that templates use."""
    found: dict[str, Any] = {}
    effort, enabled = _effort(body)[1], (body.reasoning or {}).get("enabled")
    if effort is not None:
        found["reasoning_effort"] = effort
        enabled = effort != "none"
    if enabled is not None:
        found |= {"enable_thinking": enabled, "thinking": enabled}
    return {**found, **(body.chat_template_kwargs or {})}


def _inside(runtime: EngineRuntime, body: ChatRequest, prompt: ChatPrompt) -> bool | None:
    """Whether the reply begins inside a thought. None: the reply may begin with a thought. False:
    there is no thought, also because an ``ebnf`` grammar or whole choices cover the whole text."""
    if runtime.thought_marks is None or body.choices_scoring == "whole":
        return False
    if body.ebnf is not None or body.guided_grammar is not None:
        return False
    return opened(runtime.thought_marks, prompt.tail, prompt.begun)


def _thinking(
    runtime: EngineRuntime, body: ChatRequest, inside: bool | None, behind: bool
) -> ThoughtReading | None:
    """Return the rules to read the reasoning, None without reasoning. ``behind``: the constraint
    includes the thought's opening mark, if there is a thought."""
    marks = runtime.thought_marks
    if marks is None or inside is False:
        return None
    begins = inside is True or (marks.always and not behind)
    return ThoughtReading(marks, begins, body.separate_reasoning is not False,
                    body.stream_reasoning is not False)  # fmt: skip


def _shown(runtime: EngineRuntime, use: ToolUse | None, thinking: ThoughtReading | None) -> bool:
    """Whether a mark of calls or thoughts is a control token, so control tokens must be shown."""
    marks = () if use is None else use.format.marks
    if thinking is not None:
        marks = (*marks, thinking.marks.begin, thinking.marks.end)
    special = runtime.tokenizer.special_ids
    return any(runtime.tokenizer.id_of(mark) in special for mark in marks)
