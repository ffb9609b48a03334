"""The messages API of Anthropic: requests and replies."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sglang.backend.base import Completion, Prompt
from sglang.backend.service_backend import BadReply, NoAnswer
from sglang.errors import Unsupported
from sglang.ir.choices import Decision
from sglang.ir.params import DEFAULTS, GenParams, lacking
from sglang.ir.prompt_media import Media
from sglang.ir.stops import cut, held

NAMED = ("model", "max_tokens", "messages", "stream")  # arguments of every release of the package
SAMPLING = ("temperature", "top_p", "top_k")
SAMPLING_VERSION = {"anthropic-version": "2023-06-01"}
# Parameters that the API lacks, and their neutral values.
LACKING: dict[str, Any] = {
    **lacking("max_new_tokens", "n", "stop", *SAMPLING),
    "return_logprob": False, "top_logprobs_num": 0, "regex": None, "lora_path": "",
}  # fmt: skip


@dataclass(frozen=True)
class MessagesRequest:
    """A request, and what is left to be done with its reply.

    Attributes:
        cut: white space at the end of a begun assistant turn, which the API refuses; a reply that
            begins with it is cut.
        stops: stop strings of white space, which the API refuses; the text is cut there.
        n: replies wanted.
    """

    body: dict[str, Any]
    cut: str
    stops: tuple[str, ...]
    n: int

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments of ``messages.create`` of any release of the package."""
        named = {name: value for name, value in self.body.items() if name in NAMED}
        rest = {name: value for name, value in self.body.items() if name not in NAMED}
        headers = SAMPLING_VERSION if any(name in rest for name in SAMPLING) else {}
        return {**named, "extra_body": rest, "extra_headers": headers}

    def so_far(self, reply: MessagesReply) -> Completion:
        """The part of a stream that may be shown: text that can no longer be cut."""
        text, stop = self._text(reply)
        if stop is None:
            text = text[: len(text) - held(text, self.stops)]
        return Completion(text, {**reply.meta(), "finish_reason": None})

    def completion(self, reply: MessagesReply) -> Completion:
        """Return a reply as a completion. Raises BadReply for a cut stream, and NoAnswer."""
        reason = reply.finish_reason()
        text, stop = self._text(reply)
        if stop is not None:
            reason = {"type": "stop", "matched": stop}
        return Completion(text, {**reply.meta(), "finish_reason": reason})

    def _text(self, reply: MessagesReply) -> tuple[str, str | None]:
        """The text up to the stop of ``stops`` that ends it, and that stop."""
        text = "" if self.cut.startswith(reply.text) else reply.text.removeprefix(self.cut)
        at, stop = cut(text, self.stops) or (len(text), None)
        return text[:at], stop


@dataclass
class MessagesReply:
    """A message, whole or as its events arrive. ``thought``: it has blocks of thinking. ``calls``:
    ``id``, ``name`` and ``arguments`` (JSON text) of each call of a tool of the program. ``block``:
    type of the latest block, such as one of a tool of the service."""

    request_id: str | None = None
    text: str = ""
    thought: bool = False
    block: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    ended: bool = False
    message: dict[str, Any] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)

    def add_message(self, item: Any) -> None:
        """A message that is not streamed. Raises BadReply."""
        self.message = _fields(item)
        try:
            self.usage = dict(self.message["usage"])
            for block in self.message["content"]:
                self._begin(block)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadReply(
                f"the message {str(self.message)[:200]} ({error!r})", self.request_id
            ) from error
        self.ended = True

    def add(self, item: Any) -> bool:
        """Whether this event has brought text. Raises BadReply."""
        before, event = len(self.text), _fields(item)
        try:
            self._add(event)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadReply(f"the event {str(event)[:200]} ({error!r})", self.request_id) from error
        return len(self.text) > before

    def _add(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind == "message_start":
            self.message = event["message"]
            self.usage = dict(self.message["usage"])
        elif kind == "content_block_start":
            self._begin(event["content_block"])
        elif kind == "content_block_delta" and event["delta"]["type"] == "text_delta":
            self.text += event["delta"]["text"]
        elif kind == "content_block_delta" and event["delta"]["type"] == "input_json_delta":
            if self.block == "tool_use":
                self.calls[-1]["arguments"] += event["delta"]["partial_json"]
        elif kind == "message_delta":
            self.message.update(event["delta"])
            counts = event["usage"].items()
            self.usage.update({name: count for name, count in counts if count is not None})
        elif kind == "message_stop":
            self.ended = True

    def _begin(self, block: dict[str, Any]) -> None:
        self.block = block["type"]
        if self.block == "text":
            self.text += block["text"]
        elif self.block == "tool_use":
            given = json.dumps(block["input"], ensure_ascii=False) if block["input"] else ""
            self.calls.append({"id": block["id"], "name": block["name"], "arguments": given})
        self.thought |= "thinking" in self.block

    def meta(self) -> dict[str, Any]:
        """meta_info except for the finish reason. The prompt is what was read, cached or not.
        Raises BadReply for a count that is none."""
        try:
            counts = {name: int(n or 0) for name, n in self.usage.items() if "_tokens" in name}
        except (TypeError, ValueError, OverflowError) as error:
            raise BadReply(
                f"the usage {str(self.usage)[:200]} ({error})", self.request_id
            ) from error
        cached = counts.get("cache_read_input_tokens", 0)
        written = counts.get("cache_creation_input_tokens", 0)
        made = [{**call, "arguments": call["arguments"] or "{}"} for call in self.calls]
        return {
            **({"tool_calls": made} if made else {}),
            "id": self.message.get("id"),
            "request_id": self.request_id,
            "prompt_tokens": counts.get("input_tokens", 0) + cached + written,
            "cached_tokens": cached,
            "completion_tokens": counts.get("output_tokens", 0),
        }

    def finish_reason(self) -> dict[str, Any]:
        """Return the reply in the native form. Raise BadReply for a cut stream, and NoAnswer."""
        if not self.ended:
            raise BadReply("the stream ended without message_stop", self.request_id)
        reason, length = self.message.get("stop_reason"), self.meta()["completion_tokens"]
        if reason in ("end_turn", "stop_sequence"):
            return {"type": "stop", "matched": self.message.get("stop_sequence")}
        if reason == "tool_use":
            return {"type": "tool_calls"}
        if reason in ("max_tokens", "model_context_window_exceeded"):
            if self.thought and not self.text:
                raise NoAnswer(
                    f"all {length} tokens went into thinking; raise max_tokens", self.request_id
                )
            return {"type": "length", "length": length}
        details = self.message.get("stop_details") or {}
        why = [str(details[name]) for name in ("category", "explanation") if details.get(name)]
        raise NoAnswer(
            f"the model gave no answer: {', '.join([str(reason), *why])}", self.request_id
        )


def fault(error: Exception) -> tuple[str, str]:
    """Type and message of an error that the API has sent; the latter else the exception's own."""
    body = getattr(error, "body", None)
    sent = body.get("error") if isinstance(body, Mapping) else None
    found = sent if isinstance(sent, Mapping) else {}
    return str(found.get("type", "")), str(found.get("message") or error)


def _fields(item: Any) -> dict[str, Any]:
    """An object of the package as plain data. Raises BadReply for what is no object."""
    if not hasattr(item, "to_dict"):
        raise BadReply(str(item)[:200])
    return dict(item.to_dict())


def conversation(
    prompt: Prompt, image_token: str, question: str = ""
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """System blocks, and messages whose contents are blocks; ``question`` is a user turn at the
    end.

    Blank texts are left out: the API refuses them. Raises Unsupported for media that it lacks.
    """
    system: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    turns = prompt.messages or ({"role": "user", "content": _parts(prompt, image_token)},)
    for turn in (*turns, {"role": "user", "content": question}):
        role, content = turn["role"], turn["content"]
        parts = [content] if isinstance(content, str) else content
        blocks = [_block(part) for part in parts if not isinstance(part, str) or part.strip()]
        blocks += [_tool_use(call) for call in turn.get("tool_calls") or ()]
        if role == "tool":
            told = {"tool_use_id": turn.get("tool_call_id", ""), "content": simplest(blocks)}
            role, blocks = "user", [{"type": "tool_result", **told}]
        if role == "system":
            system += blocks
        elif messages and messages[-1]["role"] == role:
            messages[-1]["content"] += blocks
        elif blocks:
            messages.append({"role": role, "content": blocks})
    if any(block["type"] != "text" for block in system):
        raise Unsupported("the Anthropic API takes no image in a system turn; put it into s.user")
    return system, messages


def _tool_use(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    try:
        given = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):  # a call that was malformed; its result says so
        given = {}
    given = given if isinstance(given, dict) else {}
    return {"type": "tool_use", "id": call["id"], "name": function["name"], "input": given}


def tools(prompt: Prompt) -> dict[str, Any]:
    """Fields that offer the prompt's tools; {} without tools."""
    if (offered := prompt.tools) is None:
        return {}
    listed = [
        {"name": one["name"], "description": one["description"], "input_schema": one["parameters"]}
        for one in offered.definitions
    ]
    kinds = {"auto": "auto", "required": "any", "none": "none"}
    choice = {"type": kinds.get(offered.choice, "tool")}
    if choice["type"] == "tool":
        choice["name"] = offered.choice
    return {"tools": listed, "tool_choice": choice}


def _parts(prompt: Prompt, image_token: str) -> list[str | Media]:
    """Texts and media of a prompt without roles."""
    texts = prompt.text.split(image_token) if prompt.media else [prompt.text]
    if len(texts) != len(prompt.media) + 1:
        raise Unsupported(
            f"{image_token!r} stands in the text itself, so it is not known where the images "
            "are; put them into s.user"
        )
    parts: list[str | Media] = [texts[0]]
    for medium, text in zip(prompt.media, texts[1:]):
        parts += [medium, text]
    return parts


def _block(part: str | Media) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if part.kind != "image":
        raise Unsupported(f"the Anthropic API takes no {part.kind}; give frames of it by image()")
    if part.url:
        return {"type": "image", "source": {"type": "url", "url": part.url}}
    source = {"type": "base64", "media_type": part.mime, "data": part.base64}
    return {"type": "image", "source": source}


def simplest(blocks: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """Content that is one text is that text."""
    if len(blocks) == 1 and set(blocks[0]) == {"type", "text"}:
        return str(blocks[0]["text"])
    return blocks


def cut_prefill(messages: list[dict[str, Any]]) -> str:
    """Take the white space off the end of a final assistant turn, and return it."""
    if not messages or messages[-1]["role"] != "assistant":
        return ""
    last = messages[-1]["content"][-1]
    text = str(last.get("text", ""))
    last.update({"text": text.rstrip()} if text else {})
    return text[len(text.rstrip()) :]


def check(params: GenParams) -> None:
    """Raise Unsupported where a parameter is set that the API does not have."""
    for name, default in LACKING.items():
        value = getattr(params, name)
        if value not in (None, default, (), []):
            raise Unsupported(
                f"the Anthropic API has no {name}, and it is {value!r}; leave it out, or use "
                "Engine or RuntimeEndpoint"
            )
    if (params.temperature or 0) > 1:
        raise Unsupported(
            f"temperature is {params.temperature}; the Anthropic API takes 0 to 1, give at most 1.0"
        )


def sampling(params: GenParams) -> dict[str, Any]:
    """The sampling parameters that ask for something."""
    values = {name: getattr(params, name) for name in SAMPLING}
    return {n: v for n, v in values.items() if v not in (None, getattr(DEFAULTS, n))}


def output_format(schema: Any) -> dict[str, Any]:
    """``output_config.format`` for a JSON schema, text or dict."""
    loaded = json.loads(schema) if isinstance(schema, str) else schema
    return {"type": "json_schema", "schema": _closed(loaded)}


def _closed(schema: Any) -> Any:
    """The schema with every object closed, as the API demands: what satisfies it satisfies the
    original."""
    if isinstance(schema, list):
        return [_closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if closed.get("type") == "object":
        closed.setdefault("additionalProperties", False)
    return closed


def question(options: Sequence[str]) -> str:
    """The question of a select."""
    listed = json.dumps(list(options), ensure_ascii=False)
    return f"Which of these choices goes on best from the text above? {listed}"


def choice_schema(options: Sequence[str]) -> dict[str, Any]:
    """An object whose one field is one of ``options``."""
    choice = {"type": "string", "enum": list(dict.fromkeys(options))}
    return {"type": "object", "properties": {"choice": choice}, "required": ["choice"]}


def decision(completion: Completion, options: Sequence[str]) -> Decision:
    """Return the choice that a reply made. Raises BadReply where it is none of the options."""
    try:
        choice = json.loads(completion.text)["choice"]
    except (ValueError, TypeError, KeyError):
        choice = None
    if choice not in options:
        raise BadReply(f"{completion.text[:200]!r} is none of the choices {list(options)}")
    meta = completion.meta
    usage = {name: count for name, count in meta.items() if name.endswith("_tokens")}
    return Decision(choice, {**meta, "decided_by": "structured output", "usage": usage})
