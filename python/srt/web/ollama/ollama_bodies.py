"""Bodies of Ollama's API. A null field is unset; ``keep_alive`` has no effect on this server.

Unsupported fields are declared too. ``suffix``, ``template`` and ``context`` are refused, because
ignoring them would change the text. ``truncate`` of a chat or prompt, ``shift`` and ``verbose``,
which clients send by default, have no effect.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from sglang.ir.declaration import Bounds
from sglang.srt.requests.common_fields import NAME, TopLogprobs

Model = Annotated[str, NAME, "The model or an adapter, with or without `:latest` after it."]
KeepAlive = Annotated[
    str | int | float | None, None, "Without effect: the model stays loaded. 0 is no error."
]
Options = Annotated[
    dict[str, Any] | None,
    Bounds(words="an object"),
    "How tokens are sampled, and when the text ends. Unknown names are ignored.",
]
Format = Annotated[
    str | dict[str, Any] | None, None, "`json`, or the JSON schema that the text follows."
]
Think = Annotated[
    bool | str | None, None, "Whether the model thinks first, or `low`, `medium`, `high`."
]


class OllamaModelBody(msgspec.Struct, kw_only=True):
    """A body that names a model; ``name`` is the older spelling of ``model``."""

    model: Model | None = None
    name: Model | None = None


class ShowBody(OllamaModelBody, kw_only=True):
    """``verbose`` has no effect."""

    verbose: bool | None = None


class PullBody(OllamaModelBody, kw_only=True):
    """A model to pull. Only a served model can be named; no other one is fetched."""

    stream: bool | None = None


class GeneratingBody(OllamaModelBody, kw_only=True):
    """Fields of both generating routes. ``stream`` is true by default. ``truncate`` and ``shift``
    have no effect; a prompt longer than the context is refused."""

    stream: Annotated[bool | None, None, "One JSON object a line; true by default."] = None
    format: Format = None
    options: Options = None
    keep_alive: KeepAlive = None
    think: Think = None
    logprobs: Annotated[bool | None, None, "Each piece has its tokens' log-probabilities."] = None
    top_logprobs: TopLogprobs | None = None
    truncate: bool | None = None
    shift: bool | None = None


class OllamaFunction(msgspec.Struct, kw_only=True):
    name: str
    arguments: dict[str, Any] = {}
    index: int | None = None


class OllamaCall(msgspec.Struct, kw_only=True):
    function: OllamaFunction
    id: str | None = None


class OllamaMessage(msgspec.Struct, kw_only=True):
    """A message; ``images`` are base64."""

    role: str
    content: str | None = None
    thinking: str | None = None
    images: list[str] | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatBody(GeneratingBody, kw_only=True):
    """A conversation. Without messages the reply reports that the model is loaded."""

    messages: list[OllamaMessage] | None = None
    tools: list[Any] | None = None


class OllamaGenerateBody(GeneratingBody, kw_only=True):
    """A prompt. Without a prompt the reply reports that the model is loaded. ``raw``: send the
    prompt to the model without the chat template."""

    prompt: str | None = None
    system: str | None = None
    images: list[str] | None = None
    raw: bool | None = None
    suffix: str | None = None
    template: str | None = None
    context: list[int] | None = None


class OllamaEmbedBody(OllamaModelBody, kw_only=True):
    """``truncate``: cut the end of a text that is longer than the context, true by default; false:
    refuse such a text."""

    input: Annotated[str | list[str] | None, None, "A text or a list of texts."] = None
    truncate: bool | None = None
    dimensions: Annotated[
        int | None, Bounds(least=1), "Only so many of each vector's first numbers."
    ] = None
    options: Options = None
    keep_alive: KeepAlive = None


class OllamaEmbeddingsBody(OllamaModelBody, kw_only=True):
    """The older route: one text, one vector."""

    prompt: str | None = None
    options: Options = None
    keep_alive: KeepAlive = None
