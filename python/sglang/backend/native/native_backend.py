"""NativeBackend: the calls of the interpreter as requests to the native ``/generate``.

``RuntimeEndpoint`` sends requests over HTTP, ``Engine`` makes them in this process. Both return the
same dicts, so everything else is shared.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sglang.backend.base import Backend, Call, Choose, Commit, Completion, Prompt
from sglang.backend.call_observer import OBSERVER
from sglang.errors import BackendError, Unsupported
from sglang.ir.choices import ChoicesMethod, Decision
from sglang.ir.params import GenParams, to_wire
from sglang.semantics.choice_requests import COMPUTED, NoChoice, Requests, choice_requests

SPANS = {"return_spans": True}
# Set explicitly, because servers may have other defaults.
STREAMED = {"stream": True, "incremental_streaming_output": False}

T = TypeVar("T")


class NativeBackend(Backend):
    """Base class. Subclasses implement ``call``, ``call_stream`` and the asynchronous versions."""

    native = True
    scores_options = True

    def get_model_name(self) -> str:
        """Return the model's path or hub id, or its served name."""
        raise NotImplementedError

    def call(self, body: dict[str, Any]) -> Any:
        """Return the answer of ``/generate``: a dict, or a list of dicts. Raises BackendError."""
        raise NotImplementedError

    async def acall(self, body: dict[str, Any]) -> Any:
        """Make a request as ``call`` does, in an event loop."""
        raise NotImplementedError

    def call_stream(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the answers of a streamed request, with cumulative text. Raises BackendError."""
        raise NotImplementedError

    def acall_stream(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Stream as ``call_stream`` does, in an event loop."""
        raise NotImplementedError

    def _asked(self, body: dict[str, Any]) -> Any:
        """Make a request by ``call``, and record it if the run is recorded."""
        if (observer := OBSERVER.get()) is None:
            return self.call(body)
        with observer.request():
            observer.answer = self.call({**body, **SPANS})
            return observer.answer

    async def _aasked(self, body: dict[str, Any]) -> Any:
        """Make a request as ``_asked`` does, in an event loop."""
        if (observer := OBSERVER.get()) is None:
            return await self.acall(body)
        with observer.request():
            observer.answer = await self.acall({**body, **SPANS})
            return observer.answer

    def _made(self, requests: Requests[T]) -> T:
        answer = None
        while True:
            try:
                answer = self._asked(requests.send(answer))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except NoChoice as error:
                raise BackendError(str(error)) from error

    async def _amade(self, requests: Requests[T]) -> T:
        answer = None
        while True:
            try:
                answer = await self._aasked(requests.send(answer))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            except NoChoice as error:
                raise BackendError(str(error)) from error

    def complete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        return completions_of(self._asked(_body(prompt, params)), params)

    async def acomplete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        return completions_of(await self._aasked(_body(prompt, params)), params)

    def stream(self, prompt: Prompt, params: GenParams) -> Iterator[Completion]:
        body = {**_body(prompt, params), **STREAMED}
        if (observer := OBSERVER.get()) is None:
            for item in self.call_stream(body):
                yield _completion(item, params)
            return
        with observer.request():
            for observer.answer in self.call_stream({**body, **SPANS}):
                yield _completion(observer.answer, params)

    async def astream(self, prompt: Prompt, params: GenParams) -> AsyncIterator[Completion]:
        body = {**_body(prompt, params), **STREAMED}
        if (observer := OBSERVER.get()) is None:
            async for item in self.acall_stream(body):
                yield _completion(item, params)
            return
        with observer.request():
            async for observer.answer in self.acall_stream({**body, **SPANS}):
                yield _completion(observer.answer, params)

    def commit(self, prompt: Prompt) -> dict[str, Any]:
        return self._made(_commit(prompt))

    async def acommit(self, prompt: Prompt) -> dict[str, Any]:
        return await self._amade(_commit(prompt))

    def choose(self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod) -> Decision:
        return self._made(self._choice(prompt, options, method))

    async def achoose(
        self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
    ) -> Decision:
        return await self._amade(self._choice(prompt, options, method))

    def _choice(
        self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
    ) -> Requests[Decision]:
        if prompt.parallel:
            raise Unsupported(
                "select cannot score after join('concate_and_append'); use gen and compare its text"
            )
        by_rows = not self.scores_options
        return choice_requests(
            prompt.text, _media(prompt), _adapter(prompt), options, method, by_rows
        )

    def request(self, call: Call) -> dict[str, Any]:
        if isinstance(call, Choose):
            return {**_input(call.prompt), "options": list(call.options)}
        if isinstance(call, Commit):
            return {**_input(call.prompt), "sampling_params": {"max_new_tokens": 0}}
        return _body(call.prompt, call.params)


def _input(prompt: Prompt) -> dict[str, Any]:
    """Return the fields of a request for the prompt."""
    texts = {"parts": parts_of(prompt)} if prompt.parallel else {"text": prompt.text}
    return {**texts, **_media(prompt), **_adapter(prompt)}


def _adapter(prompt: Prompt) -> dict[str, str]:
    return {"lora_path": prompt.lora_path} if prompt.lora_path else {}


def _media(prompt: Prompt) -> dict[str, list[Any]]:
    """Return the request's fields for media: URLs of images; URLs and frame counts of videos."""
    fields: dict[str, list[Any]] = {}
    for medium in prompt.media:
        video = {"url": medium.address, "num_frames": medium.num_frames}
        shown = video if medium.kind == "video" else medium.address
        fields.setdefault(f"{medium.kind}_data", []).append(shown)
    return fields


def parts_of(prompt: Prompt) -> list[str | list[str]]:
    """Return the prompt's texts in order; a list holds texts without attention to each other."""
    parts: list[str | list[str]] = []
    end = 0
    for group in prompt.parallel:
        parts.append(prompt.text[end : group[0][0]])
        parts.append([prompt.text[a:b] for a, b in group])
        end = group[-1][1]
    return [*parts, prompt.text[end:]]


def _body(prompt: Prompt, params: GenParams) -> dict[str, Any]:
    if _looks_ahead(params):
        params = replace(params, max_new_tokens=1)
    return {**_input(prompt), **to_wire(params)}


def _commit(prompt: Prompt) -> Requests[dict[str, Any]]:
    if not prompt.text:
        return {}
    answer = yield {**_input(prompt), **COMPUTED}
    return dict(answer["meta_info"])


def _looks_ahead(params: GenParams) -> bool:
    """Return True for a gen of 0 tokens with log-probabilities of the next token. The runtime then
    generates a token, whose text is dropped."""
    wanted = params.return_logprob or params.top_logprobs_num
    return params.max_new_tokens == 0 and bool(wanted)


def completions_of(answer: Any, params: GenParams) -> list[Completion]:
    """Return the completions of an answer of ``/generate``. Raise BackendError."""
    answers = answer if isinstance(answer, list) else [answer]
    return [_completion(item, params) for item in answers]


def _completion(answer: dict[str, Any], params: GenParams) -> Completion:
    """Return an answer as a completion. Raises BackendError if the runtime aborted the request or
    failed."""
    meta = answer["meta_info"]
    finish = meta.get("finish_reason")
    kind = finish.get("type") if isinstance(finish, dict) else None
    if kind == "abort":
        raise BackendError(f"the request was aborted: {finish.get('message') or finish}")
    if kind == "error":
        text = answer["text"]
        raise BackendError(f"no text can follow {text!r:.80}: {finish.get('message') or finish}")
    if _looks_ahead(params):
        return Completion("", {**meta, "finish_reason": {"type": "length", "length": 0}})
    return Completion(answer["text"], meta)
