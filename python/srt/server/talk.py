"""Talk: a conversation to be continued, whichever API it came by, and how the reply is read.

``/v1/chat/completions``, ``/v1/responses`` and ``/v1/messages`` are one thing in three spellings:
each makes a ``ChatBody``, has ``read_talk`` turn it into a ``Talk``, and writes the ``Delta``s that
the talk's ``Reader``s find in its own words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import msgspec

from srt.program.deltas import Begin, Delta, Words
from srt.program.output import Output
from srt.program.request import Ask, Logprobs, RequestError
from srt.server.openai import Progress, SharedBody, refuse, sampling_of
from srt.server.service import Service
from srt.server.tools import ToolUse, read_tools, with_tools

ROLES = ("system", "developer", "user", "assistant", "tool", "function")


class ChatBody(SharedBody, kw_only=True):
    """``max_tokens`` unset: whatever the context has room for."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    continue_final_message: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    chat_template: Any = None
    tools: list[Any] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    audio: Any = None
    modalities: list[str] | None = None


@dataclass(frozen=True)
class Talk:
    """What is asked of the engine, and how to read what it says.

    Attributes:
        use: the tools; None where no call may be made.
    """

    ask: Ask
    use: ToolUse | None

    def reader(self) -> Reader:
        """Of one of the ask's completions."""
        return Reader(self.use)

    @contextmanager
    def named(self) -> Iterator[None]:
        """Around the run: tells what is wrong with a tool by the tool's place."""
        with nullcontext() if self.use is None else self.use.named():
            yield


async def read_talk(service: Service, body: ChatBody) -> Talk:
    """Raises RequestError."""
    use = read_tools(body.tools, body.tool_choice, body.parallel_tool_calls)
    return Talk(await _ask(service, body, use), use)


async def _ask(service: Service, body: ChatBody, use: ToolUse | None) -> Ask:
    if body.chat_template:
        raise RequestError(
            "A request may not bring its own chat_template; start the server with --chat-template.",
            "chat_template",
            "forbidden",
        )
    for name in ("functions", "audio"):
        refuse(name, getattr(body, name))
    if set(body.modalities or ["text"]) != {"text"}:
        refuse("modalities", body.modalities)
    limit = body.max_completion_tokens
    limit = body.max_tokens if limit is None else limit
    if limit is not None and limit < 1:
        raise RequestError(f"max_tokens is {limit}; it must be at least 1.", "max_tokens")
    logprobs = None
    if body.logprobs:
        logprobs = Logprobs(top=body.top_logprobs or 0)
    elif body.top_logprobs:
        raise RequestError("top_logprobs needs logprobs: true.", "top_logprobs")
    sampling = sampling_of(body, service.info.context_length if limit is None else limit)
    if use is not None:
        constraint = use.constraint(sampling.constraint)
        special = service.tokenizer.special_ids
        hidden = any(service.tokenizer.id_of(mark) in special for mark in use.format.marks)
        sampling = msgspec.structs.replace(
            sampling,
            constraint=constraint,
            skip_special_tokens=sampling.skip_special_tokens and not hidden,
        )
    ids = await service.completion.encode_prompt(_prompt(service, body, use), False)
    rid, salt = body.rid or "", body.cache_salt or ""
    whole = body.choices_scoring == "whole"
    return Ask(ids, sampling, logprobs, rid, body.priority or 0, salt, score_choices=whole)


def _prompt(service: Service, body: ChatBody, use: ToolUse | None) -> str:
    """The conversation as the model's own template writes it."""
    if not body.messages:
        raise RequestError("messages is empty; give at least one.", "messages")
    messages = [_message(i, message) for i, message in enumerate(body.messages)]
    messages, told = with_tools(messages, service.tokenizer.chat_template or "", use)
    generation = True if body.add_generation_prompt is None else body.add_generation_prompt
    variables = {
        key: value
        for key, value in (body.chat_template_kwargs or {}).items()
        if key not in ("messages", "tools", "add_generation_prompt", "continue_final_message")
    }
    try:
        return service.tokenizer.apply_chat_template(
            messages,
            generation,
            continue_final_message=bool(body.continue_final_message),
            **variables,
            **told,
        )
    except (ValueError, TypeError) as error:
        raise RequestError(f"{error}.", "messages") from error


def _message(index: int, message: dict[str, Any]) -> dict[str, Any]:
    """A message whose content is text. Raises RequestError."""
    where, role = f"messages[{index}]", message.get("role")
    if role not in ROLES:
        raise RequestError(f"{where}.role is {role!r}; use one of {', '.join(ROLES)}.", "messages")
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(_part(where, part) for part in content)
    if content is None and role != "assistant":
        raise RequestError(f"{where}.content is missing.", "messages")
    if not isinstance(content, str | None):
        raise RequestError(f"{where}.content must be text or a list of parts.", "messages")
    role = "system" if role == "developer" else role
    return {**message, "role": role, "content": content or ""}


def _part(where: str, part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "text" and isinstance(part.get("text"), str):
        return str(part["text"])
    raise RequestError(
        f"{where}.content has a part of type {kind!r}; only text is available in this version.",
        "messages",
        "unsupported",
    )


class Reader:
    """Reads one completion as it grows: words, thoughts and calls, and what was sent of it.

    ``called``: there are calls, and the last one is whole.
    """

    def __init__(self, use: ToolUse | None) -> None:
        self.sent, self._calls = Progress(), 0
        self._parser = None if use is None else use.parser()

    @property
    def called(self) -> bool:
        return self._parser is not None and self._calls > 0 and not self._parser.cut

    def take(self, output: Output, finished: bool) -> tuple[list[Delta], range]:
        """The deltas of what was not sent yet, and its tokens."""
        text, tokens = self.sent.take(output)
        return self.read(text, finished), tokens

    def read(self, text: str, finished: bool) -> list[Delta]:
        """What the next piece of the text adds."""
        if self._parser is None:
            return [Words(text)] if text else []
        deltas = [*self._parser.feed(text), *(self._parser.finish() if finished else ())]
        self._calls += sum(isinstance(delta, Begin) for delta in deltas)
        return deltas
