"""Conversation: converts the messages of a chat to the token ids of a prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sglang.srt.core.depth import deeper
from sglang.srt.core.ints import Ints
from sglang.srt.core.media_marks import Medias
from sglang.srt.requests.completion.completion_request import verify_length
from sglang.srt.requests.completion.encoder import bytes_of
from sglang.srt.requests.completion.held_context import Resumption
from sglang.srt.requests.media_input.media_loading import Expanded
from sglang.srt.requests.media_input.sources import MediaSource
from sglang.srt.requests.request_error import RequestError
from sglang.srt.runtime.conversations.message_parts import (
    marked,
    read_content,
    shaped,
    template_content,
)
from sglang.srt.runtime.conversations.tool_use import ToolUse, with_tools
from sglang.srt.runtime.engine_runtime import EngineRuntime
from sglang.srt.runtime.matched_prompt import matched
from sglang.srt.runtime.offload import LONG, entries, offload
from sglang.srt.runtime.parking.parked_store import ParkingScope
from sglang.srt.tokenizer.jinja_chat_template import SECONDS, ChatTemplateError, SlowTemplateError

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
OWN = ("messages", "tools", "add_generation_prompt", "continue_final_message", "seconds")
MAX_VARIABLES = 64
MAX_VARIABLES_CHARS = 1 << 16
MAX_VARIABLES_DEPTH = 16
QUICK = 0.005  # seconds for which a template may block the event loop


@dataclass(frozen=True)
class ChatPrompt:
    """The prompt of a conversation.

    Attributes:
        text: the text that the template has rendered.
        begun: the last message that the reply continues, "" for a new message.
        media: images and videos among the ids.
        source: the rendered text in which control tokens of the request's own texts are escaped.
        resumed: the parked context that the prompt continues.
    """

    ids: Ints
    text: str
    begun: str = ""
    media: Medias = ()
    source: str = ""
    resumed: Resumption | None = None

    @property
    def tail(self) -> str:
        """The end of the text."""
        return self.text[-1024:]


@dataclass(frozen=True)
class Tokenizing:
    """Options for turning a rendered conversation into ids.

    Attributes:
        fits: refuse a prompt that is too long for the model.
        scope: scope of parked contexts that the prompt may continue; None: it continues none.
        owner: tenant whose share of fetches the images and videos take.
    """

    fits: bool = True
    scope: ParkingScope | None = None
    owner: str = ""


async def prompt_of(
    runtime: EngineRuntime,
    messages: list[dict[str, Any]],
    use: ToolUse | None,
    variables: Mapping[str, Any],
    generation: bool | None,
    go_on: bool,
    tokenizing: Tokenizing = Tokenizing(),
) -> ChatPrompt:
    """Render a conversation with the model's chat template and tokenize it. Raises RequestError.

    Only the template can write control tokens. Their names in texts of the request stay plain text.

    Args:
        use: the tools that the model may call.
        variables: further variables of the template.
        generation: False leaves out the opening of a reply.
        go_on: the reply continues the last message.
    """
    tokenizer, escaper, count = (
        runtime.tokenizer,
        runtime.tokenizer.control_tokens,
        entries(messages),
    )
    fits = tokenizing.fits
    if not messages:
        raise RequestError("messages is empty; give at least one.", "messages")
    turns, begun, named, sources = await offload(
        count, _template_input, runtime, messages, use, go_on
    )
    runtime.verify_seen(sources)
    variables = {name: value for name, value in variables.items() if name not in OWN}
    values = {**escaper.escape(variables), **named}

    def render(seconds: float) -> str:
        return tokenizer.apply_chat_template(
            turns, True if generation is None else generation, continue_final_message=go_on,
            seconds=seconds, **values,
        )  # fmt: skip

    try:
        text = await _rendered(render, count)
    except (ChatTemplateError, TypeError) as error:
        raise RequestError(f"{escaper.unescape(str(error))}.", "messages") from error
    if sources:
        text = marked(text, runtime.placeholders)
    source = text
    if tokenizing.scope is not None and not sources:
        found = await matched(runtime, tokenizing.scope, text)
        if found is not None:
            text = escaper.unescape(text)
            return ChatPrompt(found.tokens, text, begun, (), source, found.resumed)
    if escaper.must_encode(text):
        ids, text = await _encoded(runtime, text, fits), escaper.unescape(text)
    else:
        completion = runtime.completion
        encode = completion.encode_prompt if fits else completion.encoder.encode
        ids = await encode(text, False)
    if not sources:
        return ChatPrompt(ids, text, begun, (), source)
    seen = await _seen(runtime, ids, sources, tokenizing)
    return ChatPrompt(seen.tokens, text, begun, seen.media)


async def _seen(
    runtime: EngineRuntime, ids: Ints, sources: list[MediaSource], tokenizing: Tokenizing
) -> Expanded:
    """Return the ids with images and videos at their placeholders. Raises RequestError."""
    seen = await runtime.see(ids, sources, fits=tokenizing.fits, owner=tokenizing.owner)
    if tokenizing.fits:
        verify_length(len(seen.tokens), runtime.info)
    return seen


def _template_input(
    runtime: EngineRuntime, messages: list[dict[str, Any]], use: ToolUse | None, go_on: bool
) -> tuple[list[dict[str, Any]], str, dict[str, Any], list[MediaSource]]:
    """Return the messages for the template, the text that the reply continues, the template's
    variables for tools, and the images and videos. Raises RequestError."""
    cover = runtime.tokenizer.control_tokens.escape
    sources: list[MediaSource] = []
    turns = [_message(i, message, sources) for i, message in enumerate(messages)]
    if go_on:
        _verify_last(turns[-1])
    begun = turns[-1]["content"] if go_on else ""
    template = runtime.tokenizer.chat_template or ""
    turns, named = with_tools(cover(turns), template, use, runtime.tool_format, cover)
    return shaped(turns, runtime.tokenizer.template, bool(sources)), begun, named, sources


async def _rendered(render: Callable[[float], str], count: int) -> str:
    """Render on the event loop if the template is quick, otherwise in a thread. ``count``: number
    of entries of the messages."""
    if count <= LONG:
        with suppress(SlowTemplateError):
            return render(QUICK)
    return await asyncio.to_thread(render, SECONDS)


async def _encoded(runtime: EngineRuntime, text: str, fits: bool) -> Ints:
    """Return the ids of a text with escaped control tokens. The first such text makes the server
    build a second tokenizer. Raises RequestError."""
    tokenizer = runtime.tokenizer
    if fits:
        verify_length(len(text) // (4 * tokenizer.longest), runtime.info, "at least ")
    try:
        ids = await runtime.completion.encoder.run(bytes_of(text), tokenizer.encode_escaped, text)
    except RequestError:
        raise
    except ValueError as error:
        raise RequestError(f"The prompt cannot be tokenized: {error}.", "messages") from error
    if fits:
        verify_length(len(ids), runtime.info)
    return ids


def verify_template(template: Any, variables: Mapping[str, Any]) -> None:
    """Raise RequestError if a request has a ``chat_template``, or if its ``chat_template_kwargs``
    exceed their limits of entries, characters or depth."""
    if template:
        raise RequestError(
            "A request may not bring its own chat_template; start the server with --chat-template.",
            "chat_template",
            "forbidden",
        )

    def refuse(what: str) -> RequestError:
        return RequestError(f"chat_template_kwargs {what}.", "chat_template_kwargs")

    if len(variables) > MAX_VARIABLES:
        raise refuse(f"has {len(variables)} entries; at most {MAX_VARIABLES}")
    if entries(variables, MAX_VARIABLES_CHARS) > MAX_VARIABLES_CHARS:
        raise refuse(f"has more than {MAX_VARIABLES_CHARS} characters; give fewer")
    if deeper(variables, MAX_VARIABLES_DEPTH):
        raise refuse(f"is nested deeper than {MAX_VARIABLES_DEPTH} levels; flatten it")
    size = len(json.dumps(variables, ensure_ascii=False))
    if size > MAX_VARIABLES_CHARS:
        raise refuse(f"has {size} characters; at most {MAX_VARIABLES_CHARS}")


def _verify_last(message: Mapping[str, Any]) -> None:
    calls = message.get("tool_calls")
    if calls or not isinstance(message["content"], str):
        raise RequestError(
            f"continue_final_message is set, and the last message has "
            f"{'tool_calls' if calls else 'images'}; a reply can continue only text.",
            "continue_final_message",
        )


def _message(index: int, message: dict[str, Any], sources: list[MediaSource]) -> dict[str, Any]:
    """Return a message for the template, with text or parts as its content. Its images and videos
    are appended to ``sources``. Raises RequestError."""
    where, role = f"messages[{index}]", message.get("role")
    if role not in ROLES:
        raise RequestError(f"{where}.role is {role!r}; use one of {', '.join(ROLES)}.", "messages")
    content = message.get("content")
    if content is None and role != "assistant":
        raise RequestError(f"{where}.content is missing.", "messages")
    parts = read_content(where, role, "" if content is None else content)
    sources += [part for part in parts if isinstance(part, MediaSource)]
    role = "system" if role == "developer" else role
    turns = {**message, "role": role, "content": template_content(parts)}
    return _modern(where, turns)


def _modern(where: str, message: dict[str, Any]) -> dict[str, Any]:
    """Convert a legacy ``function_call`` to ``tool_calls``, and its result to a tool's message."""
    called = message.pop("function_call", None)
    if message["role"] == "function":
        message["role"] = "tool"
    elif called is not None and not message.get("tool_calls"):
        if not isinstance(called, dict):
            raise RequestError(f"{where}.function_call must be an object.", "messages")
        message["tool_calls"] = [{"type": "function", "function": called}]
    return message
