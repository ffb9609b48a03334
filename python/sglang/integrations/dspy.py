"""SGLang: a DSPy language model over a backend, in this process or over HTTP.

    dspy.configure(lm=SGLang(sglang.Engine()))

DSPy owns its response cache, retries, history and candidates; the engines here answer one request
each (``complete``, ``stream``), as text under the backend's chat template. A signature's
instructions and demos begin that text, so every call of a predictor shares them as a prefix.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from typing import Any
from warnings import warn

from sglang.backend.base import Backend, Completion, Prompt
from sglang.backend.native.endpoint import RuntimeEndpoint
from sglang.errors import BackendError, ConnectionFailed, SglangError, TimedOut, Unsupported
from sglang.ir.chat_template import Message
from sglang.ir.params import NAMES, GenParams, checked
from sglang.ir.prompt_media import Media, medium
from sglang.run.run_scope import resolve_backend

try:
    import dspy
    from dspy import lm15
except ImportError as error:
    raise ImportError(
        f"sglang.integrations.dspy needs DSPy 3.4 or newer: pip install 'dspy>=3.4' ({error}); "
        "an older one reaches a server by dspy.LM('openai/default', api_base='http://.../v1')"
    ) from error

from sglang.integrations.dspy_tools import DspyTools, call_fields, result_text, written

MAX_TOKENS = 1024  # default length of a completion
SAME_NAMES = (
    "temperature", "top_p", "top_k", "seed", "frequency_penalty", "presence_penalty",
)  # fmt: skip
HONOURED = frozenset(
    {*SAME_NAMES, "max_tokens", "stop", "response_format", "logprobs", "tool_choice"}
)
FIELDS = {  # fields of Config for parameters of another name
    "max_new_tokens": "max_tokens", "json_schema": "response_format",
    "return_logprob": "logprobs", "return_text_in_logprobs": "logprobs",
    "top_logprobs_num": "logprobs",
}  # fmt: skip
ROLES = {"user": "user", "assistant": "assistant", "developer": "system", "tool": "tool"}
BY_STATUS = {
    400: lm15.InvalidRequestError,
    401: lm15.AuthError,
    403: lm15.AuthError,
    404: lm15.InvalidRequestError,
    413: lm15.InvalidRequestError,
    422: lm15.InvalidRequestError,
    429: lm15.RateLimitError,
}

_unconstrained: weakref.WeakSet[Backend] = weakref.WeakSet()  # backends that a warning named


class SGLang(dspy.LM):  # type: ignore[misc]
    """A ``dspy.LM`` that generates by a backend.

    Args:
        target: an Engine, Runtime, RuntimeEndpoint or any other backend, or a runtime's URL. It
            stays the caller's: nothing here shuts it down.
        model: its name in DSPy's history and response cache; the model's own where None.
        api_key: for a URL.
        max_tokens: most tokens of a completion; MAX_TOKENS where None.
        kwargs: those of ``dspy.LM`` (``temperature``, ``cache``, ``num_retries``, ...).

    Raises:
        TypeError: ``target`` is no backend.
        BackendError: nothing answers at the URL.
    """

    def __init__(
        self,
        target: Any,
        model: str | None = None,
        *,
        api_key: str | None = None,
        max_tokens: int | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(target, str):
            target = RuntimeEndpoint(target, api_key=api_key)
        elif api_key is not None:
            raise TypeError("api_key is for a URL; a backend has its own")
        backend = resolve_backend(target)
        super().__init__(
            f"sglang/{model or _name(backend)}",
            max_tokens=max_tokens or MAX_TOKENS,
            engine=BackendEngine(backend),
            async_engine=AsyncBackendEngine(backend),
            **kwargs,
        )


class _Shared:
    """Capabilities of the model as DSPy reads them, the same for both engines."""

    supports_function_calling = True
    supports_reasoning = False
    supports_response_schema = True
    supported_params = HONOURED | {"logit_bias", "top_logprobs", "tools"}

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    def __deepcopy__(self, memo: dict[int, Any]) -> _Shared:
        """DSPy copies whole programs; a model is shared by the copies."""
        return self

    def _call(self, request: Any) -> tuple[Prompt, GenParams, DspyTools | None]:
        prompt, params = prompt_of(request, self.backend), params_of(request, self.backend)
        if not request.tools:
            return prompt, params, None
        tools = DspyTools(request, self.backend)
        return *tools.offered(prompt, params), tools


class BackendEngine(_Shared):
    """DSPy's engine: one request, one response."""

    def complete(self, request: Any) -> Any:
        prompt, params, tools = self._call(request)
        with _translated():
            (completion,) = self.backend.complete(prompt, params)
        return response_of(request, completion, tools)

    def stream(self, request: Any) -> Iterator[Any]:
        prompt, params, tools = self._call(request)
        growing = _Growing(request, tools)
        yield growing.start()
        with _translated():
            for completion in self.backend.stream(prompt, params):
                yield from growing.more(completion)
        yield from growing.end()

    def close(self) -> None:
        """The backend is borrowed."""


class AsyncBackendEngine(_Shared):
    """``BackendEngine`` for an event loop."""

    async def complete(self, request: Any) -> Any:
        prompt, params, tools = self._call(request)
        with _translated():
            (completion,) = await self.backend.acomplete(prompt, params)
        return response_of(request, completion, tools)

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        prompt, params, tools = self._call(request)
        growing = _Growing(request, tools)
        yield growing.start()
        with _translated():
            async for completion in self.backend.astream(prompt, params):
                for event in growing.more(completion):
                    yield event
        for event in growing.end():
            yield event

    async def aclose(self) -> None:
        """The backend is borrowed."""


def prompt_of(request: Any, backend: Backend) -> Prompt:
    """The request's turns as messages and as text, with the assistant's turn open."""
    template = backend.chat_template
    turns = [(ROLES.get(message.role, message.role), message.parts) for message in request.messages]
    system = request.system
    if system is None and turns[0][0] != "system":
        system = template.default_system
    if system is not None:
        turns.insert(0, ("system", (lm15.TextPart(system),) if isinstance(system, str) else system))
    text = ""
    messages: list[Message] = []
    media: list[Media] = []
    for role, parts in turns:
        prefix, suffix = template.around(role, messages)
        if role == "tool":
            for part in parts:
                told = result_text(part)
                text += prefix + told + suffix
                messages.append({"role": role, "content": told, "tool_call_id": part.id})
            continue
        fields = call_fields(parts)
        content = [_content(p) for p in parts if not isinstance(p, lm15.ToolCallPart)]
        images = [part for part in content if isinstance(part, Media)]
        shown = "".join(template.image_token if isinstance(p, Media) else p for p in content)
        text += prefix + shown + written(backend, fields) + suffix
        messages.append({"role": role, "content": content if images else shown, **fields})
        media += images
    text += template.around("assistant", messages)[0]
    return Prompt(text, tuple(messages), tuple(media))


def _content(part: Any) -> str | Media:
    if isinstance(part, lm15.TextPart):
        return str(part.text)
    if isinstance(part, lm15.ImagePart) and part.file_id is None:
        data = f"data:{part.media_type};base64,{part.data}" if part.data else None
        return medium("image", part.path or part.url or data)
    raise lm15.UnsupportedFeatureError(
        f"sglang cannot show the model a {part.type}; give text or an image", feature="messages"
    )


def params_of(request: Any, backend: Backend) -> GenParams:
    """The request's config as generation parameters; what cannot be honoured is refused.

    ``config.extensions`` may hold any further field of GenParams (``min_p``, ``regex``, ...).
    """
    config = request.config
    extensions = dict(config.extensions or {})
    asked = {f.name for f in fields(config) if getattr(config, f.name) not in (None, ())}
    unknown = sorted((asked - HONOURED - {"extensions"}) | (extensions.keys() - set(NAMES)))
    if unknown:
        raise lm15.UnsupportedFeatureError(
            f"sglang has no {', '.join(unknown)}; remove it", feature=f"config.{unknown[0]}"
        )
    wanted = {name: getattr(config, name) for name in SAME_NAMES}
    if config.logprobs is not None:
        wanted |= {
            "return_logprob": True,
            "return_text_in_logprobs": True,
            "top_logprobs_num": config.logprobs or None,
        }
    stops = dict.fromkeys((*config.stop, *backend.chat_template.stop))
    wanted |= {
        "max_new_tokens": config.max_tokens or MAX_TOKENS,
        "stop": tuple(stops) or None,
        "json_schema": _schema(config.response_format, backend),
    }
    _verify_extensions(extensions, wanted.keys())
    return GenParams(**wanted, **extensions)


def _verify_extensions(extensions: dict[str, Any], taken: Collection[str]) -> None:
    """Raise lm15's InvalidRequestError for one of ``taken``, and for a value that no backend could
    take."""
    if twice := sorted(extensions.keys() & set(taken)):
        own = dict.fromkeys(f"config.{FIELDS.get(name, name)}" for name in twice)
        raise lm15.InvalidRequestError(
            f"config.extensions has {', '.join(twice)}; set {', '.join(own)} instead"
        )
    names = {name: f"config.extensions[{name!r}]" for name in extensions}
    try:
        checked(GenParams(**extensions), names)
    except (TypeError, ValueError) as error:
        raise lm15.InvalidRequestError(str(error)) from error


def _schema(response_format: Any, backend: Backend) -> Any:
    """The JSON schema to generate under; None, with one warning, where the backend cannot."""
    if response_format is None:
        return None
    if "json_schema" in backend.constraints:
        return response_format.get("schema", {"type": "object"})
    if backend not in _unconstrained:
        _unconstrained.add(backend)
        warn(
            f"the {backend.name} backend does not enforce a JSON schema: DSPy's adapter asks for "
            "the format in words and checks what comes",
            stacklevel=2,
        )
    return None


def response_of(request: Any, completion: Completion, tools: DspyTools | None = None) -> Any:
    """A completion as DSPy's response."""
    meta = completion.meta
    parts = (lm15.TextPart(completion.text),) if tools is None else tools.parts(completion)
    return lm15.Response(
        id=meta.get("id"),
        model=request.model,
        message=lm15.Message("assistant", parts),
        finish_reason=_finish(meta, parts),
        usage=_usage(meta),
        logprobs=_logprobs(meta) if request.config.logprobs is not None else None,
    )


class _Growing:
    """Completions that hold all text so far, as events that hold what is new; with tools, whose
    calls are read from the whole text, all at the end."""

    def __init__(self, request: Any, tools: DspyTools | None) -> None:
        self.request, self.tools = request, tools
        self.last = Completion("")

    def start(self) -> Any:
        return lm15.StreamStartEvent(model=self.request.model)

    def more(self, completion: Completion) -> Iterator[Any]:
        new, self.last = completion.text[len(self.last.text) :], completion
        if new and self.tools is None:
            yield lm15.StreamDeltaEvent(lm15.TextDelta(new))

    def end(self) -> Iterator[Any]:
        meta = self.last.meta
        if self.request.config.logprobs is not None:
            yield lm15.StreamDeltaEvent(lm15.TextDelta("", logprobs=_logprobs(meta) or ()))
        parts = () if self.tools is None else self.tools.parts(self.last)
        for index, part in enumerate(parts):
            yield lm15.StreamDeltaEvent(_delta(index, part))
        yield lm15.StreamEndEvent(finish_reason=_finish(meta, parts), usage=_usage(meta))


def _delta(index: int, part: Any) -> Any:
    if isinstance(part, lm15.ToolCallPart):
        given = json.dumps(part.input, ensure_ascii=False)
        return lm15.ToolCallDelta(given, part_index=index, id=part.id, name=part.name)
    return lm15.TextDelta(part.text, part_index=index)


def _finish(meta: dict[str, Any], parts: Sequence[Any]) -> str:
    if any(isinstance(part, lm15.ToolCallPart) for part in parts):
        return "tool_call"
    reason = meta.get("finish_reason") or {}
    return "length" if reason.get("type") == "length" else "stop"


def _usage(meta: dict[str, Any]) -> Any:
    return lm15.Usage(
        input_tokens=meta.get("prompt_tokens"),
        output_tokens=meta.get("completion_tokens"),
        cache_read_tokens=meta.get("cached_tokens"),
    )


def _logprobs(meta: dict[str, Any]) -> Any:
    """None where the backend has given none."""
    rows = meta.get("output_token_logprobs")
    if rows is None:
        return None
    tops: Iterable[Any] = meta.get("output_top_logprobs") or [()] * len(rows)
    return tuple(
        lm15.TokenLogprob(
            token=text or "",
            logprob=logprob,
            token_id=token,
            top=tuple(lm15.TopLogprob(t or "", p, token_id=i) for p, i, t in top or ()),
        )
        for (logprob, token, text), top in zip(rows, tops)
    )


@contextmanager
def _translated() -> Iterator[None]:
    """A backend's errors as those that DSPy retries or reports."""
    try:
        yield
    except Unsupported as error:
        raise lm15.UnsupportedFeatureError(str(error)) from error
    except TimedOut as error:
        raise lm15.TimeoutError(str(error)) from error
    except ConnectionFailed as error:
        raise lm15.TransportError(str(error)) from error
    except BackendError as error:
        status = error.status
        kind = lm15.ServerError if status and status >= 500 else lm15.ProviderError
        kind = BY_STATUS.get(status or 0, kind)
        if kind is lm15.InvalidRequestError and "context length" in str(error):
            kind = lm15.ContextLengthError  # DSPy's agents then shorten their trajectory
        raise kind(str(error), status=status, request_id=error.request_id) from error


def _name(backend: Backend) -> str:
    """The model's name as the runtime serves it; other backends have ``model_name`` or ``name``."""
    try:
        info = backend.get_server_info()
    except SglangError:
        info = {}
    known = info.get("served_model_name") or info.get("model_path")
    return str(known or getattr(backend, "model_name", backend.name))
