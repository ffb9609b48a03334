"""One completion in the words of each API that writes text: its request and its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

Json = dict[str, Any]


def user(text: Any) -> list[Json]:
    return [{"role": "user", "content": text}]


@dataclass(frozen=True)
class Api:
    """A route that writes text.

    Attributes:
        prompt: the body of a prompt. whole: the text of an answer.
        told: what a stream's event tells: its text, or None, and its reason to end, or None.
        words: the route's own names of parameters; the others are named as in plain completions.
        cumulative: each event has all the text so far.
        extra: parameters that make a stream's events large.
    """

    path: str
    prompt: Callable[[str], Json]
    whole: Callable[[Json], str]
    told: Callable[[Json], tuple[str | None, str | None]]
    words: dict[str, str] = field(default_factory=dict)
    cumulative: bool = False
    extra: Json = field(default_factory=dict)

    def body(self, prompt: str, stream: bool = False, **params: Any) -> Json:
        body = {**self.prompt(prompt), "stream": stream}
        for name, value in params.items():
            nested = self.path == "/generate" and name != "rid"
            where = body.setdefault("sampling_params", {}) if nested else body
            where[self.words.get(name, name)] = value
        return body

    def text(self, reply: httpx.Response, stream: bool = False) -> str:
        """The text of an answer; asserts that it ends once, and that nothing follows the end."""
        assert reply.status_code == 200, reply.text
        if not stream:
            return self.whole(reply.json())
        values, text, ends = events(reply.text), "", []
        for value in values:
            words, end = self.told(value)
            text = words if self.cumulative and words is not None else text + (words or "")
            ends += [end] * (end is not None)
        assert len(ends) == 1, (ends, reply.text[-500:])
        assert ends[0] != "failed", reply.text[-500:]
        return text

    def ended(self, text: str) -> str:
        """End of a stream: its one terminal event, ``error`` where that is an error's code."""
        values = events(text)
        last = values[-1]
        found = last.get("response", last).get("error")
        if found:
            return str(found["code"] if "code" in found else found["details"]["error_code"])
        reasons = [end for _, end in map(self.told, values) if end is not None]
        assert len(reasons) == 1, text[-500:]
        return reasons[0]


def events(text: str) -> list[Json]:
    """The values of a stream; asserts that ``[DONE]``, if it comes, comes once and last."""
    data = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    assert "[DONE]" not in data[:-1]
    return [json.loads(line) for line in data if line != "[DONE]"]


def _generated(event: Json) -> tuple[str | None, str | None]:
    reason = event.get("meta_info", {}).get("finish_reason")
    return event.get("text"), reason and reason["type"]


def _choice(event: Json) -> tuple[str | None, str | None]:
    (choice,) = event.get("choices") or [{}]
    text = choice.get("text", choice.get("delta", {}).get("content"))
    return text, choice.get("finish_reason")


def _responded(event: Json) -> tuple[str | None, str | None]:
    kind = event["type"].removeprefix("response.")
    text = event["delta"] if kind == "output_text.delta" else None
    return text, kind if kind in ("completed", "incomplete", "failed") else None


def _messaged(event: Json) -> tuple[str | None, str | None]:
    text = event["delta"].get("text") if event["type"] == "content_block_delta" else None
    return text, "message_stop" if event["type"] == "message_stop" else None


def _said(answer: Json) -> str:
    parts = [part for item in answer["output"] for part in item.get("content", ())]
    return "".join(part["text"] for part in parts)


APIS = {
    api.path: api
    for api in (
        Api(
            "/generate",
            lambda text: {"text": text},
            lambda answer: str(answer["text"]),
            _generated,
            {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"},
            cumulative=True,
            extra={"return_logprob": True, "top_logprobs_num": 128},
        ),
        Api(
            "/v1/completions",
            lambda text: {"prompt": text},
            lambda answer: str(answer["choices"][0]["text"]),
            _choice,
            extra={"logprobs": 128},
        ),
        Api(
            "/v1/chat/completions",
            lambda text: {"messages": user(text)},
            lambda answer: str(answer["choices"][0]["message"]["content"]),
            _choice,
            extra={"logprobs": True, "top_logprobs": 128},
        ),
        Api(
            "/v1/responses",
            lambda text: {"input": text, "store": False},
            _said,
            _responded,
            {"max_tokens": "max_output_tokens"},
            extra={"top_logprobs": 128, "include": ["message.output_text.logprobs"]},
        ),
        Api(
            "/v1/messages",
            lambda text: {"messages": user(text)},
            lambda answer: "".join(block["text"] for block in answer["content"]),
            _messaged,
            {"stop": "stop_sequences"},
        ),
    )
}
