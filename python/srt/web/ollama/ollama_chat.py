"""Conversion of bodies of Ollama's API to chat requests.

images       become parts of the user's message, before its text
thinking     becomes ``reasoning_content``, which a template may write
tool_calls   become calls of the assistant's message, numbered if they have no ids
tool         a result of the first unanswered call of that name; without a name, of the first one
The reply continues a last message of the assistant.
"""

from __future__ import annotations

from collections import defaultdict, deque
from itertools import product
from typing import Any

from sglang.srt.requests.request_error import RequestError, shown
from sglang.srt.runtime.conversations.chat_request import ChatRequest
from sglang.srt.web.ollama.ollama_bodies import (
    GeneratingBody,
    OllamaChatBody,
    OllamaGenerateBody,
    OllamaMessage,
)
from sglang.srt.web.ollama.ollama_options import fields_of

EFFORTS = ("low", "medium", "high")


def chat_of(body: OllamaChatBody, model: str, thinks: bool) -> ChatRequest:
    """Return the chat request of a body of /api/chat. ``model``: the runtime's name of the model;
    ``thinks``: the model's reasoning is separated from its answers. Raises RequestError."""
    messages = _Conversation(body.messages or []).messages
    last = messages[-1]
    goes_on = last["role"] == "assistant" and not last.get("tool_calls") and bool(last["content"])
    shared = _shared(body, model, thinks)
    return ChatRequest(
        **shared, messages=messages, tools=body.tools or None, continue_final_message=goes_on
    )


def prompt_chat(body: OllamaGenerateBody, model: str, thinks: bool) -> ChatRequest:
    """Return the chat request for the prompt of /api/generate. Raises RequestError."""
    system = [OllamaMessage(role="system", content=body.system)] if body.system else []
    said = OllamaMessage(role="user", content=body.prompt, images=body.images)
    messages = _Conversation([*system, said], "images").messages
    return ChatRequest(**_shared(body, model, thinks), messages=messages)


def verify_generate(body: OllamaGenerateBody) -> None:
    """Raise RequestError for fields that this server does not support."""
    advice = {
        "suffix": "the model fills no gaps; put all of the text into prompt",
        "template": "start the server with --chat-template, or send raw: true",
        "context": "it is not kept; send the conversation to /api/chat",
    }
    for name, instead in advice.items():
        if getattr(body, name):
            raise RequestError(f"{name} is not available: {instead}.", name, "unsupported")
    for name in ("system", "images", "think"):
        if body.raw and getattr(body, name):
            raise RequestError(
                f"raw is true, and {name} needs the chat template; remove one of them.", name
            )


def response_format(format: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """Convert ``format`` to OpenAI's ``response_format``. Raises RequestError."""
    if not format and not isinstance(format, dict):
        return None
    if isinstance(format, dict):
        return {"type": "json_schema", "json_schema": {"schema": format}}
    if format != "json":
        raise RequestError(f"format is {shown(format)}; give 'json' or a JSON schema.", "format")
    return {"type": "json_object"}


def sampling_fields(body: GeneratingBody, model: str) -> dict[str, Any]:
    """Return the sampling parameters and constraint as fields of ``CompletionFields``. Raises
    RequestError."""
    return {
        "model": model,
        **fields_of(body.options),
        "response_format": response_format(body.format),
    }


def _shared(body: GeneratingBody, model: str, thinks: bool) -> dict[str, Any]:
    logprobs = {"logprobs": body.logprobs, "top_logprobs": body.top_logprobs}
    return {**sampling_fields(body, model), **logprobs, **_thinking(body.think, model, thinks)}


def _thinking(think: bool | str | None, model: str, thinks: bool) -> dict[str, Any]:
    if isinstance(think, str) and think not in EFFORTS:
        raise RequestError(
            f"think is {shown(think)}; give true, false or one of {', '.join(EFFORTS)}.", "think"
        )
    if think and not thinks:
        raise RequestError(
            f"{model!r:.200} does not support thinking; remove think.", "think", "unsupported"
        )
    if think is None:
        return {}
    if isinstance(think, str):
        return {"reasoning_effort": think}
    return {"chat_template_kwargs": {"enable_thinking": think, "thinking": think}}


class _Conversation:
    """Converter of messages to OpenAI's format. ``field``: name of the images' field in errors."""

    def __init__(self, given: list[OllamaMessage], field: str = "") -> None:
        self._field, self._count = field, 0
        # Id and name of each unanswered call, by the four references that a result may use: id,
        # name, both or neither. Answered calls are emptied, and removed when they come first.
        self._open: defaultdict[tuple[str, str], deque[list[str]]] = defaultdict(deque)
        self.messages = [self._message(i, message) for i, message in enumerate(given)]

    def _message(self, index: int, message: OllamaMessage) -> dict[str, Any]:
        found: dict[str, Any] = {"role": message.role, "content": message.content or ""}
        if message.images:
            where = self._field or f"messages[{index}].images"
            pictures = [picture(f"{where}[{i}]", data) for i, data in enumerate(message.images)]
            found["content"] = [*pictures, {"type": "text", "text": message.content or ""}]
        if message.thinking:
            found["reasoning_content"] = message.thinking
        if message.tool_calls:
            found["tool_calls"] = self._calls(message)
        if message.role == "tool":
            found["tool_call_id"], found["name"] = self._answered(message)
        return found

    def _calls(self, message: OllamaMessage) -> list[dict[str, Any]]:
        calls = []
        for call in message.tool_calls or ():
            self._count += 1
            name = call.id or f"call{self._count:05d}"
            waiting = [name, call.function.name]
            for known in product((name, ""), (call.function.name, "")):
                self._open[known].append(waiting)
            function = {"name": call.function.name, "arguments": call.function.arguments}
            calls.append({"id": name, "type": "function", "function": function})
        return calls

    def _answered(self, message: OllamaMessage) -> tuple[str, str]:
        """Return id and function name of the call that a result message answers."""
        said = message.tool_call_id or "", message.tool_name or ""
        line = self._open.get(said, deque())
        while line:
            waiting = line.popleft()
            if waiting:
                number, name = waiting
                waiting.clear()
                return number, name
        return said


def picture(where: str, data: str) -> dict[str, Any]:
    """Return a message part with an image. Only base64 is accepted, so that the text cannot name a
    file or an address."""
    if not data:
        raise RequestError(f"{where} is empty; give base64 of an image.", "messages")
    url = data if data[:5].lower() == "data:" else f"data:image;base64,{data}"
    return {"type": "image_url", "image_url": url}
