"""Exchange: one call in the terms of an API of OpenAI: its body, and what its reply means.

    (prompt, params)  ->  body  ->  [ the client ]  ->  reply, or events of a stream  ->  Completion

Plain data in and out: no client, no thread, no event loop. The APIs are in ``apis``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sglang.backend.base import Completion, Prompt
from sglang.backend.openai.server_kinds import PLAIN, ServerKind
from sglang.backend.openai.strict_schema import is_object, unwrapped
from sglang.backend.service_backend import BadReply, NoAnswer
from sglang.errors import Unsupported
from sglang.ir.params import GenParams, lacking, neutral, strings
from sglang.ir.prompt_media import Media
from sglang.ir.stops import cut, held

MAX_STOPS = 4
# Options of the APIs, and those that only other servers take, with the value that means "off".
OPTIONS = neutral("n", "frequency_penalty", "presence_penalty", "seed", "logit_bias")
BEYOND = {
    **lacking("max_new_tokens", "temperature", "top_p", "stop", *OPTIONS),
    "lora_path": "",
}
LONG_NAMES = {"min_new_tokens": "min_tokens"}
REASONING_MODELS = re.compile(r"(.*/)?(ft:)?(o\d|gpt-[5-9])")


@dataclass(frozen=True)
class OpenAIService:
    """The service at the other end, and its habits.

    Attributes:
        name: of the backend, for errors.
        official: OpenAI itself or Azure, which refuse what they do not know.
        explicit: the server has its own sampling defaults, so neutral values are sent too.
        reasoning: the model refuses stops, and writes its reasoning before the text.
        continues: the server can continue the last assistant message.
        image_token: how images are marked in a prompt's text.
        kind: of server, which says how a text is held to a constraint.
        extra: fields of every body.
    """

    name: str
    model: str
    official: bool = True
    explicit: bool = False
    reasoning: bool = False
    continues: bool = False
    image_token: str = "<image>"
    kind: ServerKind = PLAIN
    extra: Mapping[str, Any] = field(default_factory=dict)


class Exchange:
    """One call; ``body`` is exactly what is sent to ``path``.

    A reply is read by ``completions``, or a stream event by event by ``take`` and then ``end``;
    the sender of the call sets ``request_id``.

    Raises:
        Unsupported: the prompt or the parameters ask for what the API lacks.
        ValueError: a parameter is beyond the API's limit.
        BadReply: from the reading methods.
    """

    path: ClassVar[str]
    request_id: str | None = None

    def __init__(
        self, service: OpenAIService, prompt: Prompt, params: GenParams, *, stream: bool = False
    ) -> None:
        self.service, self.prompt, self.params = service, prompt, params
        self.stops = tuple(filter(None, strings(params.stop)))
        self.schema = _schema(params)
        self._prefill = ""
        self.body = {"model": service.model, **self._prompt(), **self._sampling()}
        self.body.update(self._constraint() if self.schema else service.kind.fields(params))
        self.body.update(self._tools())
        self.body.update(service.extra)
        if stream:
            self.body.update(self._streaming())
        self._text = self._shown = ""
        self._whole: dict[str, Any] = {}

    @property
    def sends_stops(self) -> bool:
        """Whether the API takes stop strings; if not, the text is cut here."""
        return True

    # The body

    def _prompt(self) -> dict[str, Any]:
        raise NotImplementedError

    def _constraint(self) -> dict[str, Any]:
        return {}

    def _tools(self) -> dict[str, Any]:
        """Fields that offer the prompt's tools; {} where they stand in its text."""
        return {}

    def _limit(self) -> str:
        """Name of the parameter for ``max_new_tokens``."""
        return "max_tokens"

    def _logprobs(self) -> dict[str, Any]:
        """Fields that ask for log-probabilities."""
        raise NotImplementedError

    def _streaming(self) -> dict[str, Any]:
        return {"stream": True, "stream_options": {"include_usage": True}}

    def _sampling(self) -> dict[str, Any]:
        params, service = self.params, self.service
        body: dict[str, Any] = {}
        if params.max_new_tokens is not None:
            body[self._limit()] = params.max_new_tokens
        unsaid = (None,) if service.explicit else (None, 1.0)
        for name in ("temperature", "top_p"):
            if getattr(params, name) not in unsaid:
                body[name] = getattr(params, name)
        body.update(self._options())
        beyond = _chosen(params, BEYOND)
        if service.official:
            self._refuse(beyond)
        body.update(beyond)
        if self.stops and self.sends_stops:
            if service.official and len(self.stops) > MAX_STOPS:
                raise ValueError(
                    f"stop has {len(self.stops)} strings, {service.name} takes {MAX_STOPS}; "
                    "give fewer, or cut the text in the program"
                )
            body["stop"] = list(self.stops)
        if params.return_logprob or params.top_logprobs_num:
            body.update(self._logprobs())
        if params.logprob_start_len not in (None, -1):
            self._refuse({"logprob_start_len": params.logprob_start_len}, "RuntimeEndpoint")
        return body

    def _options(self) -> dict[str, Any]:
        return _chosen(self.params, OPTIONS)

    def _refuse(self, options: Mapping[str, Any], instead: str = "") -> None:
        for name, value in options.items():
            raise Unsupported(
                f"the {self.service.name} backend has no {name}, which is {value!r}; leave it out "
                f"or use {instead or 'Engine, RuntimeEndpoint or base_url= of a server with it'}"
            )

    # The reply

    def completions(self, reply: Any) -> list[Completion]:
        """``params.n`` completions. The usage, known for all of them together, is the first's."""
        with self._as_promised():
            return self._read(mapping(reply, "reply"))

    def take(self, event: Any) -> Completion | None:
        """Return the text after this event of a stream, None where it has not changed."""
        with self._as_promised():
            self._add(mapping(event, "chunk of the stream"))
        shown, _ = self._edited(self._text, growing=True)
        if shown == self._shown:
            return None
        self._shown = shown
        return Completion(shown, {"finish_reason": None})

    def end(self) -> Completion:
        """The finished completion of a stream that is over."""
        with self._as_promised():
            whole = self._streamed()
            if whole is None:
                raise BadReply(f"the stream was cut after {len(self._text)} characters")
            return self._read(whole)[0]

    @contextmanager
    def _as_promised(self) -> Iterator[None]:
        """Turn errors of reading a malformed reply into BadReply."""
        try:
            yield
        except BadReply as error:
            error.request_id = self.request_id
            raise
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            message = f"its fields are not those of the API ({error!r})"
            raise BadReply(message, self.request_id) from error

    def _read(self, reply: Mapping[str, Any]) -> list[Completion]:
        raise NotImplementedError

    def _streamed(self) -> Mapping[str, Any] | None:
        """The stream as a whole reply; None if its end is missing."""
        raise NotImplementedError

    def _add(self, event: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _edited(self, text: str, growing: bool = False) -> tuple[str, str | None]:
        """The text as it would be if the API had every option, and the stop that we cut it at.

        Of a ``growing`` text what may be the beginning of a stop, or of the repeated beginning of
        the turn, is held back.
        """
        if self.schema is not None and not is_object(self.schema):
            text = unwrapped(text)
        if growing and any(head.startswith(text) for head in heads(self._prefill)):
            return "", None
        text = without(self._prefill, text)
        if not self.stops or self.sends_stops:
            return text, None
        if (found := cut(text, self.stops)) is not None:
            return text[: found[0]], found[1]
        return (text[: len(text) - held(text, self.stops)] if growing else text), None

    def _completion(
        self, text: str, finish: Any, choice: Mapping[str, Any], meta: Mapping[str, Any]
    ) -> Completion:
        if finish == "length" and not text and self.service.reasoning:
            spent = meta.get("completion_tokens") or self.params.max_new_tokens
            raise NoAnswer(f"all {spent} tokens went into reasoning; raise max_tokens")
        text, stop = self._edited(text)
        meta = {"request_id": self.request_id, **meta}
        matched = choice.get("matched_stop", choice.get("stop_reason"))
        reason: dict[str, Any] = {"type": finish or "stop"}
        if stop is not None or reason["type"] == "stop":
            reason = {"type": "stop", "matched": matched if stop is None else stop}
        elif finish == "length":
            length = meta.get("completion_tokens") if self.params.n in (None, 1) else None
            reason["length"] = length or self.params.max_new_tokens
        return Completion(text, {"finish_reason": reason, **meta})

    def _expect(self, prefill: Any) -> None:
        """The reply may begin by repeating this; one that has to be JSON does not."""
        if isinstance(prefill, str) and self.schema is None:
            self._prefill = prefill

    def _keep_logprobs(self, tokens: Any, meta: dict[str, Any]) -> None:
        """Log-probabilities, where requested, as entries ``[logprob, token, token]``."""
        if not (self.params.return_logprob or self.params.top_logprobs_num):
            return
        if not tokens:
            raise BadReply("it has no log-probabilities, which were asked for")
        meta["output_token_logprobs"] = [_entry(token) for token in tokens]
        if self.params.top_logprobs_num:
            tops = [token.get("top_logprobs") or () for token in tokens]
            meta["output_top_logprobs"] = [[_entry(token) for token in top] for top in tops]


def _entry(token: Mapping[str, Any]) -> list[Any]:
    return [token["logprob"], token["token"], token["token"]]


def is_reasoning(model: str) -> bool:
    """Whether OpenAI's model of this name reasons first."""
    return REASONING_MODELS.match(model) is not None


def _schema(params: GenParams) -> Mapping[str, Any] | None:
    schema: Any = params.json_schema
    return dict(json.loads(schema) if isinstance(schema, str) else schema) if schema else None


def _chosen(params: GenParams, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are not off, as they go on the wire."""
    found: dict[str, Any] = {}
    for name, off in options.items():
        value = getattr(params, name)
        if name == "stop_regex":
            value = list(strings(value))
        elif isinstance(value, Mapping):
            value = {str(key): bias for key, bias in value.items()}
        elif isinstance(value, Sequence):
            value = list(value)
        if value not in (None, off, [], {}):
            found[LONG_NAMES.get(name, name)] = value
    return found


def messages_of(
    prompt: Prompt, service: OpenAIService, part: Callable[[str, str | Media], Any]
) -> list[tuple[Mapping[str, Any], Any]]:
    """The turns with their contents; a program without roles is one user's turn.

    ``part`` makes a part of a content of a role and a text or an image. Raises Unsupported for a
    video.
    """
    turns = prompt.messages or ({"role": "user", "content": _content(prompt, service)},)
    for medium in prompt.media:
        if medium.kind != "image":
            raise Unsupported(
                f"the {service.name} backend has no {medium.kind}; append frames of it, each as an "
                "image"
            )
    return [
        (
            turn,
            turn["content"]
            if isinstance(turn["content"], str)
            else [part(turn["role"], item) for item in turn["content"]],
        )
        for turn in turns
    ]


def _content(prompt: Prompt, service: OpenAIService) -> str | list[Any]:
    """The text with each marker replaced by its image."""
    if not prompt.media:
        return prompt.text
    texts = prompt.text.split(service.image_token)
    if len(texts) != len(prompt.media) + 1:
        raise Unsupported(
            f"the text has {service.image_token!r} of its own beside {len(prompt.media)} images; "
            "use roles: s += user(...)"
        )
    parts: list[Any] = [texts[0]]
    for medium, text in zip(prompt.media, texts[1:]):
        parts += [medium, text]
    return [item for item in parts if item != ""]


def heads(prefill: str) -> tuple[str, str]:
    """The forms in which a reply may repeat ``prefill``."""
    return prefill, prefill.strip()


def without(prefill: str, text: str) -> str:
    """``text`` less ``prefill`` at its beginning, where that ends at the end of a word."""
    for head in heads(prefill):
        if head and re.match(re.escape(head) + r"((?<!\w)|(?!\w))", text):
            return text[len(head) :]
    return text


def usage_of(reply: Mapping[str, Any]) -> dict[str, int]:
    """Counts of a reply's ``usage`` by the names of meta_info; {} where it has none."""
    usage = reply.get("usage")
    if not isinstance(usage, Mapping):
        return {}
    said = {
        "prompt_tokens": usage.get("prompt_tokens", usage.get("input_tokens")),
        "completion_tokens": usage.get("completion_tokens", usage.get("output_tokens")),
    }
    for name in ("prompt_tokens_details", "input_tokens_details"):
        if isinstance(usage.get(name), Mapping):
            said["cached_tokens"] = usage[name].get("cached_tokens")
    return {name: int(count) for name, count in said.items() if count is not None}


def mapping(value: Any, what: str) -> Mapping[str, Any]:
    """Return ``value``, a JSON object. Raises BadReply, which calls it ``what``, where it is
    none."""
    if not isinstance(value, Mapping):
        raise BadReply(f"the {what} is {brief(value)}, not a JSON object")
    return value


def brief(value: Any) -> str:
    """A short form for an error's message."""
    return repr(value)[:200]
