"""Backend: what the interpreter asks of a model, text in and text out.

Every call has an asynchronous twin (``acomplete`` for ``complete``), which by default runs the
plain one in a worker thread. A backend overrides what it can honour; the rest raises Unsupported
and names an alternative.

    Complete -> complete     Stream -> stream     Choose -> choose     Commit -> commit

The four call objects are plain data, so that a call can be described, recorded and made from a
thread or from an event loop by the same interpreter.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, runtime_checkable

from sglang.backend.global_settings import global_config
from sglang.backend.output_constraint import OutputConstraint
from sglang.backend.renamed_parameters import renamed
from sglang.backend.worker_threads import in_worker, pumped
from sglang.errors import Unsupported
from sglang.ir.chat_template import TEMPLATES, ChatTemplate, Message
from sglang.ir.choices import ChoicesMethod, Decision
from sglang.ir.params import GenParams, to_wire
from sglang.ir.prompt_media import Media

Ranges: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class PromptTools:
    """Tools that a prompt offers to the model.

    Attributes:
        definitions: ``name``, ``description`` and ``parameters`` (a JSON schema) of each.
        choice: "auto", "none", "required", or the name of the tool that has to be called.
        introduction: text that tells the model of them; "" where the service's API does.
        at: offset of the introduction in the text.
    """

    definitions: tuple[Mapping[str, Any], ...]
    choice: str = "auto"
    introduction: str = ""
    at: int = 0

    def introduced(self, prompt: Prompt) -> Prompt:
        """Return ``prompt`` with these tools, and their introduction in its text."""
        text = prompt.text[: self.at] + self.introduction + prompt.text[self.at :]
        parallel = tuple(
            tuple((self._moved(begin), self._moved(end)) for begin, end in group)
            for group in prompt.parallel
        )
        return replace(prompt, text=text, parallel=parallel, tools=self)

    def _moved(self, offset: int) -> int:
        return offset + len(self.introduction) if offset >= self.at else offset


@dataclass(frozen=True)
class Prompt:
    """A state's text, and its chat messages where roles were used.

    Attributes:
        text: everything, chat template included; each medium stands in it as its marker
            (``ChatTemplate.image_token``).
        messages: ``{"role", "content"}``; the content is a text, or a list of texts and Media where
            the turn has media. Calls of tools (``tool_calls``) and their results (role "tool",
            ``tool_call_id``) are as OpenAI has them. The open role is the last message.
        media: images and videos, in the order of their markers in ``text``.
        parallel: groups of ``(start, end)`` in ``text``: the texts of one group were joined by
            ``join("concate_and_append")``, each encoded as if the others were not there.
        lora_path: the adapter that is to read it, "" for none.
        tools: tools that the model may call, None for none.
    """

    text: str
    messages: tuple[Message, ...] = ()
    media: tuple[Media, ...] = ()
    parallel: tuple[Ranges, ...] = ()
    lora_path: str = ""
    tools: PromptTools | None = None


@dataclass(frozen=True)
class Completion:
    """Generated text. While streaming, ``text`` is everything so far. ``meta``: meta_info; of a
    service whose API has tools, ``tool_calls`` holds ``id``, ``name`` and ``arguments`` (JSON text)
    of each call."""

    text: str
    meta: dict[str, Any] = field(default_factory=dict)


class OwnFunctionCall(Protocol):
    """A call of a function of the program."""

    async def arun(self, backend: Backend) -> Any:
        """Call it, after a hint to ``backend``. Raises ToolError."""


class Backend:
    """The calls of the interpreter. A backend overrides those that it can honour.

    Attributes:
        constraints: of "regex", "json_schema", "choices", "ebnf" and "structural_tag", those that
            the backend enforces while it generates. For the first three the frontend else
            validates, and asks again (``max_retries``); the others are refused.
        speculates: how ``num_api_spec_tokens`` is used: "text" (a completion model: over-generate
            and reuse), "chat" (one reply for all gens of an assistant turn) or "" (ignored).
        messages_only: of a program with roles, the backend is sent the turns alone.
        continues: text that no constraint holds is the prompt's continuation (a completion model),
            not an answer; a typed value is then what it begins with.
        native: calls are requests to ``/generate`` of a runtime of ours.
        calls_tools: the service's API has tools: it is sent ``Prompt.tools``, and calls come in the
            meta_info. Else the model writes calls into its text.
        tool_format: how it writes them, a name in ``semantics/tool_calls/tool_formats``.
        scores_options: that runtime takes ``options``, and scores them as one tree.
    """

    name = "backend"
    chat_template: ChatTemplate = TEMPLATES["default"]
    constraints: frozenset[str] = frozenset()
    speculates: str = ""
    messages_only: bool = False
    continues: bool = False
    native: bool = False
    calls_tools: bool = False
    tool_format: str = "hermes"
    scores_options: bool = False

    def resemble(self, other: Backend) -> None:
        """Take over what a program's flow depends on: name, template and the attributes above, but
        for ``native``."""
        for trait in ("name", "chat_template", "constraints", "speculates", "messages_only",
                      "continues", "calls_tools", "tool_format"):  # fmt: skip
            setattr(self, trait, getattr(other, trait))

    def __repr__(self) -> str:
        """The class, and the model or the address where they are known."""
        known = (vars(self).get(name) for name in ("model_name", "base_url", "path", "address"))
        return f"{type(self).__name__}({', '.join(str(one) for one in known if one)})"

    def enforces(self, constraint: OutputConstraint) -> bool:
        """Return whether text generated under ``constraint`` needs no check. A backend may take a
        constraint and not enforce it."""
        return constraint.kind in self.constraints

    def complete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        """``params.n`` completions. Raises BackendError."""
        raise self.lacks("gen")

    async def acomplete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        """``complete`` for an event loop."""
        return await in_worker(self.complete, prompt, params)

    def stream(self, prompt: Prompt, params: GenParams) -> Iterator[Completion]:
        """One completion as it grows; the last item is the finished one. Raises BackendError."""
        raise self.lacks("streaming gen", "run without stream=True")

    def astream(self, prompt: Prompt, params: GenParams) -> AsyncIterator[Completion]:
        """``stream`` for an event loop."""
        return pumped(lambda: self.stream(prompt, params))

    def choose(self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod) -> Decision:
        """Score every option as the continuation of ``prompt``. Raises BackendError."""
        raise self.lacks("select", "use gen and compare its text")

    async def achoose(
        self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
    ) -> Decision:
        """``choose`` for an event loop."""
        return await in_worker(self.choose, prompt, options, method)

    def commit(self, prompt: Prompt) -> dict[str, Any]:
        """Compute and cache ``prompt``, returning its meta_info: a hint, nothing need happen."""
        return {}

    async def acommit(self, prompt: Prompt) -> dict[str, Any]:
        """``commit`` for an event loop."""
        return await in_worker(self.commit, prompt)

    def of_stream(self, number: int) -> Backend:
        """Return the backend of stream ``number`` of a graph that runs: this one, for all."""
        return self

    async def atool(self, call: OwnFunctionCall) -> Any:
        """Answer ``call``, a call of the program's own function, in an event loop."""
        return await call.arun(self)

    def pause_hint(self, prompt: Prompt, tool: str, expected_seconds: float | None) -> None:
        """Note that ``prompt`` goes on once ``tool`` has run, in about ``expected_seconds``.

        A hint for the cache, sent before the tool runs. It must not wait, and need do nothing.
        """

    def request(self, call: Call) -> dict[str, Any]:
        """The request that ``call`` would send, as plain data; nothing is sent."""
        prompt = call.prompt
        if isinstance(call, Choose):
            return {"text": prompt.text, "choices": list(call.options)}
        if isinstance(call, Commit):
            return {"text": prompt.text, "sampling_params": {"max_new_tokens": 0}}
        return {"text": prompt.text, **to_wire(call.params)}

    @renamed(prefix_str="text")
    def cache_prefix(self, prefix_str: str) -> None:
        """Compute and cache the prefix ``prefix_str``."""
        if prefix_str:
            self.commit(Prompt(prefix_str))

    def tokenize(self, texts: Sequence[str], special: bool = True) -> list[Sequence[int]]:
        """Token ids of each text; ``special``: with those that the model has around a prompt."""
        raise self.lacks("tokenize")

    def detokenize(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """The text of each row of token ids."""
        raise self.lacks("detokenize")

    def flush_cache(self) -> Any:
        """Empty the prefix cache."""
        raise self.lacks("flush_cache")

    def get_server_info(self) -> dict[str, Any]:
        """Settings and counters of the runtime."""
        raise self.lacks("get_server_info")

    def shutdown(self) -> None:
        """Release what the backend holds; calling it again does nothing."""

    def lacks(self, primitive: str, instead: str = "use Engine or RuntimeEndpoint") -> Unsupported:
        """The error to raise for a primitive that this backend cannot honour."""
        return Unsupported(f"the {self.name} backend has no {primitive}; {instead}")


@runtime_checkable
class ServerHandle(Protocol):
    """A server with a backend that calls it, such as ``Runtime``."""

    endpoint: Backend


def checked_backend(backend: Any) -> Backend:
    """Return the given backend, for a Runtime its endpoint, for None the default one.

    Raise ValueError where there is none, TypeError for a value that is no backend.
    """
    chosen = global_config.default_backend if backend is None else backend
    if chosen is None:
        raise ValueError(
            "no backend: call sglang.set_default_backend(sglang.Engine()) once, "
            "or give run(..., backend=...)"
        )
    if isinstance(chosen, Backend):
        return chosen
    if isinstance(chosen, ServerHandle) and isinstance(chosen.endpoint, Backend):
        return chosen.endpoint
    hint = "make one of it: Engine()" if isinstance(chosen, type) else "use sgl.Engine(...)"
    raise TypeError(
        f"{chosen!r:.60} is not a backend; {hint}, or Runtime, RuntimeEndpoint, OpenAI, "
        "Anthropic, LiteLLM, Mock"
    )


@dataclass(frozen=True)
class Complete:
    """``params.n`` completions of a prompt."""

    prompt: Prompt
    params: GenParams

    def do(self, backend: Backend) -> list[Completion]:
        return backend.complete(self.prompt, self.params)

    async def ado(self, backend: Backend) -> list[Completion]:
        return await backend.acomplete(self.prompt, self.params)


@dataclass(frozen=True)
class StreamCall:
    """One completion; ``show`` is given it whenever it has grown."""

    prompt: Prompt
    params: GenParams
    show: Callable[[Completion], None]

    def do(self, backend: Backend) -> list[Completion]:
        last = Completion("")
        for last in backend.stream(self.prompt, self.params):
            self.show(last)
        return [last]

    async def ado(self, backend: Backend) -> list[Completion]:
        last = Completion("")
        async for last in backend.astream(self.prompt, self.params):
            self.show(last)
        return [last]


@dataclass(frozen=True)
class Choose:
    """The best of ``options`` as the continuation of a prompt."""

    prompt: Prompt
    options: tuple[str, ...]
    method: ChoicesMethod

    def do(self, backend: Backend) -> Decision:
        return backend.choose(self.prompt, self.options, self.method)

    async def ado(self, backend: Backend) -> Decision:
        return await backend.achoose(self.prompt, self.options, self.method)


@dataclass(frozen=True)
class Commit:
    """A hint to compute and cache a prompt."""

    prompt: Prompt

    def do(self, backend: Backend) -> dict[str, Any]:
        return backend.commit(self.prompt)

    async def ado(self, backend: Backend) -> dict[str, Any]:
        return await backend.acommit(self.prompt)


Call: TypeAlias = Complete | StreamCall | Choose | Commit
