"""The APIs of OpenAI: /chat/completions, /completions and /responses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sglang.backend.base import Completion, Prompt
from sglang.backend.openai.api_exchange import (
    Exchange,
    OpenAIService,
    brief,
    mapping,
    messages_of,
    usage_of,
)
from sglang.backend.openai.strict_schema import response_format
from sglang.backend.openai.tool_fields import (
    chat_calls,
    chat_tools,
    chat_turn,
    grown_calls,
    responses_calls,
    responses_items,
    responses_tools,
)
from sglang.backend.service_backend import BadReply, NoAnswer
from sglang.errors import Unsupported
from sglang.ir.params import GenParams
from sglang.ir.prompt_media import Media

QUOTE = '"'
KEPT = ("finish_reason", "matched_stop", "stop_reason")


class Choices(Exchange):
    """Common part of /chat/completions and /completions: a reply of ``choices``."""

    def _read(self, reply: Mapping[str, Any]) -> list[Completion]:
        choices, wanted = reply.get("choices"), self.params.n or 1
        if not isinstance(choices, Sequence) or len(choices) != wanted:
            raise BadReply(f"it has not the {wanted} choices asked for: {brief(reply)}")
        usage, found = usage_of(reply), []
        for choice in sorted(choices, key=lambda choice: choice.get("index") or 0):
            text = self._content(choice)
            meta = {"id": reply.get("id"), **usage}
            if calls := self._calls(choice):
                meta["tool_calls"] = calls
            else:
                self._entries(choice.get("logprobs") or {}, meta)
            found.append(self._completion(text, choice.get("finish_reason"), choice, meta))
            usage = {}
        return found

    def _streamed(self) -> Mapping[str, Any] | None:
        choice = self._whole.get("choice", {})
        if not choice.get("finish_reason"):
            return None
        return {**self._whole, "choices": [{**choice, **self._said()}]}

    def _add(self, event: Mapping[str, Any]) -> None:
        for name in ("id", "usage"):
            if event.get(name):
                self._whole[name] = event[name]
        choices = event.get("choices")
        if not isinstance(choices, Sequence):
            raise BadReply(f"a chunk of the stream has no choices: {brief(event)}")
        whole = self._whole.setdefault("choice", {})
        for choice in choices:
            self._grow(whole, choice)
            whole.update((name, choice[name]) for name in KEPT if choice.get(name) is not None)
            for name, values in (choice.get("logprobs") or {}).items():
                if isinstance(values, list):
                    whole.setdefault("logprobs", {}).setdefault(name, []).extend(values)

    def _said(self) -> dict[str, Any]:
        """Return the collected text of a stream in the fields of a choice."""
        raise NotImplementedError

    def _grow(self, whole: dict[str, Any], choice: Mapping[str, Any]) -> None:
        """Add the piece of text in ``choice``, a chunk of a stream, to the collected text."""
        raise NotImplementedError

    def _content(self, choice: Mapping[str, Any]) -> str:
        """Return a choice's text. Raise BadReply or NoAnswer, with the reason, where it has no
        text."""
        raise NotImplementedError

    def _calls(self, choice: Mapping[str, Any]) -> list[dict[str, str]]:
        """Return the calls in a choice to the prompt's tools."""
        return []

    def _entries(self, logprobs: Mapping[str, Any], meta: dict[str, Any]) -> None:
        """Store the log-probabilities of a choice in ``meta``."""
        raise NotImplementedError


class ChatExchange(Choices):
    """The API /chat/completions.

    If the program has begun the assistant's turn, that beginning is sent as the last message. Few
    services continue it. Most answer anew; where their answer repeats the beginning, it is removed.
    """

    path = "/chat/completions"

    @property
    def sends_stops(self) -> bool:
        """Return whether stops are sent: reasoning models refuse them."""
        return not self.service.reasoning

    def _prompt(self) -> dict[str, Any]:
        turns = messages_of(self.prompt, self.service, _chat_part)
        messages = [chat_turn(turn, content) for turn, content in turns]
        if messages[-1]["role"] == "assistant":
            if self.service.continues:
                going_on = {"continue_final_message": True, "add_generation_prompt": False}
                return {"messages": messages, **going_on}
            self._expect(messages[-1]["content"])
        return {"messages": messages}

    def _tools(self) -> dict[str, Any]:
        return chat_tools(self.prompt.tools, self.service.official)

    def _calls(self, choice: Mapping[str, Any]) -> list[dict[str, str]]:
        message = mapping(choice.get("message"), "message")
        return [] if self.prompt.tools is None else chat_calls(message.get("tool_calls") or ())

    def _limit(self) -> str:
        return "max_completion_tokens" if self.service.reasoning else "max_tokens"

    def _constraint(self) -> dict[str, Any]:
        if self.schema is None:
            return {}
        json_schema = response_format(self.schema)
        return {"response_format": {"type": "json_schema", "json_schema": json_schema}}

    def _logprobs(self) -> dict[str, Any]:
        top = self.params.top_logprobs_num
        return {"logprobs": True, **({"top_logprobs": top} if top else {})}

    def _grow(self, whole: dict[str, Any], choice: Mapping[str, Any]) -> None:
        delta = mapping(choice.get("delta") or {}, "delta")
        self._text += delta.get("content") or ""
        whole["refusal"] = whole.get("refusal", "") + (delta.get("refusal") or "")
        grown_calls(whole.setdefault("tool_calls", []), delta.get("tool_calls") or ())

    def _said(self) -> dict[str, Any]:
        """Return the message of the streamed choice. An empty text becomes None where the choice
        has a refusal, tool calls or a content filter in place of a text."""
        said = {name: self._whole["choice"].get(name) for name in ("refusal", "tool_calls")}
        filtered = self._whole["choice"]["finish_reason"] == "content_filter"
        content = None if filtered or any(said.values()) else ""
        return {"message": {"content": self._text or content, **said}}

    def _content(self, choice: Mapping[str, Any]) -> str:
        message = mapping(choice.get("message"), "message")
        if isinstance(message.get("content"), str):
            return str(message["content"])
        if message.get("refusal"):
            raise NoAnswer(f"the model refuses: {message['refusal']}")
        if message.get("tool_calls"):
            if self.prompt.tools is not None:
                return ""
            raise NoAnswer("the model calls a tool instead of writing text")
        if choice.get("finish_reason") == "content_filter":
            raise NoAnswer("the content filter has removed the text")
        if choice.get("finish_reason") == "length":
            return ""
        raise BadReply(f"it has no text: {brief(choice)}")

    def _entries(self, logprobs: Mapping[str, Any], meta: dict[str, Any]) -> None:
        self._keep_logprobs(logprobs.get("content"), meta)


class TextExchange(Choices):
    """The API /completions, which continues the prompt's text (with its chat template).

    With ``dtype`` "str" the text is in double quotes. This class appends the opening quote to the
    prompt and makes the closing quote the stop.
    """

    path = "/completions"

    def __init__(
        self, service: OpenAIService, prompt: Prompt, params: GenParams, *, stream: bool = False
    ) -> None:
        self._quoted = params.dtype == "str"
        if self._quoted:
            prompt = replace(prompt, text=prompt.text + QUOTE)
            params = replace(params, stop=QUOTE)
        super().__init__(service, prompt, params, stream=stream)

    def _prompt(self) -> dict[str, Any]:
        if self.prompt.media:
            raise Unsupported(
                f"the {self.service.name} backend has no {self.prompt.media[0].kind} for a "
                "completion model; use a chat model"
            )
        return {"prompt": self.prompt.text}

    def _constraint(self) -> dict[str, Any]:
        if self.schema is None:
            return {}
        if not (fields := self.service.kind.fields(self.params)):
            self._refuse({"json_schema": dict(self.schema)}, "a chat model")
        self.schema = None  # the text is as it is
        return fields

    def _logprobs(self) -> dict[str, Any]:
        return {"logprobs": max(self.params.top_logprobs_num or 0, 1)}

    def _grow(self, whole: dict[str, Any], choice: Mapping[str, Any]) -> None:
        self._text += choice.get("text") or ""

    def _said(self) -> dict[str, Any]:
        return {"text": self._text}

    def _content(self, choice: Mapping[str, Any]) -> str:
        if not isinstance(choice.get("text"), str):
            raise BadReply(f"it has no text: {brief(choice)}")
        text = str(choice["text"])
        if not self._quoted:
            return text
        return QUOTE + text + (QUOTE if choice.get("finish_reason") == "stop" else "")

    def _entries(self, logprobs: Mapping[str, Any], meta: dict[str, Any]) -> None:
        tokens = logprobs.get("tokens")
        if tokens is not None:
            tops = logprobs.get("top_logprobs") or [None] * len(tokens)
            tokens = [
                {
                    "token": token,
                    "logprob": logprob,
                    "top_logprobs": [{"token": t, "logprob": p} for t, p in (top or {}).items()],
                }
                for token, logprob, top in zip(tokens, logprobs["token_logprobs"], tops)
            ]
        self._keep_logprobs(tokens, meta)


class ResponsesExchange(Exchange):
    """The API /responses. It has no stops, so this class cuts the text at them; it lacks most
    sampling options."""

    path = "/responses"

    @property
    def sends_stops(self) -> bool:
        """Return False: the API has no parameter for stops."""
        return False

    def _prompt(self) -> dict[str, Any]:
        turns = messages_of(self.prompt, self.service, _responses_part)
        last, content = turns[-1]
        if last["role"] == "assistant":
            self._expect(content)
        items = [item for turn, content in turns for item in responses_items(turn, content)]
        return {"input": items, "store": False}

    def _tools(self) -> dict[str, Any]:
        return responses_tools(self.prompt.tools)

    def _limit(self) -> str:
        return "max_output_tokens"

    def _options(self) -> dict[str, Any]:
        self._refuse(super()._options(), "OpenAI(..., api='chat')")
        return {}

    def _constraint(self) -> dict[str, Any]:
        if self.schema is None:
            return {}
        return {"text": {"format": {"type": "json_schema", **response_format(self.schema)}}}

    def _logprobs(self) -> dict[str, Any]:
        top = self.params.top_logprobs_num
        body: dict[str, Any] = {"include": ["message.output_text.logprobs"]}
        return {**body, "top_logprobs": top} if top else body

    def _streaming(self) -> dict[str, Any]:
        return {"stream": True}

    def _add(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "response.output_text.delta":
            self._text += event.get("delta") or ""
        elif kind in ("response.completed", "response.incomplete", "response.failed"):
            self._whole = dict(mapping(event.get("response"), "response"))
        elif kind == "error":
            raise BadReply(f"the stream ended with an error: {event.get('message')}")
        elif not isinstance(kind, str):
            raise BadReply(f"a chunk of the stream has no type: {brief(event)}")

    def _streamed(self) -> Mapping[str, Any] | None:
        return self._whole or None

    def _read(self, reply: Mapping[str, Any]) -> list[Completion]:
        parts = [
            part
            for item in reply.get("output") or ()
            if item.get("type") == "message"
            for part in item.get("content") or ()
        ]
        cause = (reply.get("incomplete_details") or {}).get("reason")
        texts = [part for part in parts if part.get("type") == "output_text"]
        calls = responses_calls(reply.get("output") or ()) if self.prompt.tools else []
        if not texts and not calls and cause != "max_output_tokens":
            raise _excuse(reply, parts, cause)
        text = "".join(part["text"] for part in texts)
        meta = {"id": reply.get("id"), **usage_of(reply)}
        if calls:
            meta["tool_calls"] = calls
        else:
            self._keep_logprobs([t for part in texts for t in part.get("logprobs") or ()], meta)
        finish = "length" if cause == "max_output_tokens" else cause
        return [self._completion(text, finish, {}, meta)]


def _excuse(reply: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], cause: Any) -> BadReply:
    """Return an error with the reason that a reply of /responses has no text."""
    if refusals := "".join(part.get("refusal") or "" for part in parts):
        return NoAnswer(f"the model refuses: {refusals}")
    if why := cause or (reply.get("error") or {}).get("message"):
        return NoAnswer(f"no text ({why})")
    return BadReply(f"it has no text ({reply.get('status') or brief(reply)})")


def _chat_part(role: str, item: str | Media) -> dict[str, Any]:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    return {"type": "image_url", "image_url": {"url": item.address}}


def _responses_part(role: str, item: str | Media) -> dict[str, Any]:
    if isinstance(item, str):
        return {"type": "output_text" if role == "assistant" else "input_text", "text": item}
    return {"type": "input_image", "image_url": item.address}
