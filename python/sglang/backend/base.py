"""Backend: the interpreter's interface to a model, with text as input and output.

Every method has an asynchronous version (``acomplete`` for ``complete``), which by default runs the
synchronous one in a worker thread. A backend overrides the methods that it supports. The others
raise Unsupported with an alternative.

    Complete -> complete     StreamCall -> stream     Choose -> choose     Commit -> commit

The four call objects are plain data, so that a call can be described and recorded, and a thread or
an event loop can make it."""

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
        definitions: ``name``, ``description`` and ``parameters`` (a JSON schema) of each tool.
        choice: "auto", "none", "required", or the name of the tool that the model must call.
        introduction: text that describes the tools to the model; "" if the service's API does so.
        at: offset of the introduction in the prompt's text.
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
    """A state's text, and its chat messages if the program used roles.

    Attributes:
        text: the whole text with the chat template applied. A marker
            (``ChatTemplate.image_token``) stands for each medium.
        messages: ``{"role", "content"}``; the content is a text, or a list of texts and Media for a
            turn with media. Tool calls (``tool_calls``) and their results (role "tool",
            ``tool_call_id``) have OpenAI's form. The open role is the last message.
        media: images and videos, in the order of their markers in ``text``.
        parallel: groups of ranges ``(start, end)`` in ``text``. ``join("concate_and_append")`` has
            joined the texts of a group; each is encoded without attention to the others.
        lora_path: the adapter to use, "" for none.
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
    """Generated text. While streaming, ``text`` is the whole text so far. ``meta``: meta_info. For
    a service whose API has tools, its ``tool_calls`` has ``id``, ``name`` and ``arguments`` (JSON
    text) of each call."""

    text: str
    meta: dict[str, Any] = field(default_factory=dict)


class OwnFunctionCall(Protocol):
    """A call of a function of the program."""

    async def arun(self, backend: Backend) -> Any:
        """Send ``backend`` a pause hint, then call the function. Raises ToolError."""


class Backend:
    """Base class of backends. A subclass overrides the calls that it supports.

    Attributes:
        constraints: the kinds ("regex", "json_schema", "choices", "ebnf", "structural_tag") that
            the backend enforces during generation. Texts of the first three kinds are otherwise
            checked and requested again (``max_retries``); the other kinds are refused.
        speculates: use of ``num_api_spec_tokens``: "text" (a completion model: over-generate and
            reuse), "chat" (one reply for all gens of an assistant turn) or "" (ignored).
        messages_only: the backend is sent only the turns of a program with roles, no other text.
        continues: unconstrained text continues the prompt (a completion model) instead of
            answering it; a typed value is then taken from the text's beginning.
        native: calls are requests to ``/generate`` of a runtime of this project.
        calls_tools: the service's API has tools: ``Prompt.tools`` is sent, and the meta_info has
            the calls. Otherwise the model generates calls as text.
        tool_format: format of calls as text, a name in ``semantics/tool_calls/tool_formats``.
        scores_options: the native runtime accepts ``options`` and scores them as one tree.
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
        """Copy from ``other`` the attributes that a program's flow depends on: name, template and
        those above except ``native`` and ``scores_options``."""
        for trait in ("name", "chat_template", "constraints", "speculates", "messages_only",
                      "continues", "calls_tools", "tool_format"):  # fmt: skip
            setattr(self, trait, getattr(other, trait))

    def __repr__(self) -> str:
        """Return the class with the model, address or path, if known."""
        known = (vars(self).get(name) for name in ("model_name", "base_url", "path", "address"))
        return f"{type(self).__name__}({', '.join(str(one) for one in known if one)})"

    def enforces(self, constraint: OutputConstraint) -> bool:
        """Return True if text generated under ``constraint`` needs no check. A backend may accept a
        constraint without enforcing it."""
        return constraint.kind in self.constraints

    def complete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        """Return ``params.n`` completions. Raises BackendError."""
        raise self.lacks("gen")

    async def acomplete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        """Complete as ``complete`` does, in an event loop."""
        return await in_worker(self.complete, prompt, params)

    def stream(self, prompt: Prompt, params: GenParams) -> Iterator[Completion]:
        """Yield one growing completion; the last item is complete. Raises BackendError."""
        raise self.lacks("streaming gen", "run without stream=True")

    def astream(self, prompt: Prompt, params: GenParams) -> AsyncIterator[Completion]:
        """Stream as ``stream`` does, in an event loop."""
        return pumped(lambda: self.stream(prompt, params))

    def choose(self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod) -> Decision:
        """Score every option as the continuation of ``prompt``. Raises BackendError."""
        raise self.lacks("select", "use gen and compare its text")

    async def achoose(
        self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
    ) -> Decision:
        """Choose as ``choose`` does, in an event loop."""
        return await in_worker(self.choose, prompt, options, method)

    def commit(self, prompt: Prompt) -> dict[str, Any]:
        """Compute and cache ``prompt`` and return its meta_info. A backend may ignore this hint."""
        return {}

    async def acommit(self, prompt: Prompt) -> dict[str, Any]:
        """Commit as ``commit`` does, in an event loop."""
        return await in_worker(self.commit, prompt)

    def of_stream(self, number: int) -> Backend:
        """Return the backend for stream ``number`` of a running graph; by default this one."""
        return self

    async def atool(self, call: OwnFunctionCall) -> Any:
        """Answer ``call``, a call of the program's own function, in an event loop."""
        return await call.arun(self)

    def pause_hint(self, prompt: Prompt, tool: str, expected_seconds: float | None) -> None:
        """Note that ``prompt`` continues after ``tool`` has run, in about ``expected_seconds``.

        The hint is for the cache, and is given before the tool runs. An override must not wait.
        """

    def request(self, call: Call) -> dict[str, Any]:
        """Return the request body for ``call`` as plain data, without sending it."""
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
        """Return the token ids of each text. ``special``: with the special tokens of a prompt."""
        raise self.lacks("tokenize")

    def detokenize(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each row of token ids."""
        raise self.lacks("detokenize")

    def flush_cache(self) -> Any:
        """Empty the prefix cache."""
        raise self.lacks("flush_cache")

    def get_server_info(self) -> dict[str, Any]:
        """Return settings and counters of the runtime."""
        raise self.lacks("get_server_info")

    def shutdown(self) -> None:
        """Release the backend's resources. A second call has no effect."""

    def lacks(self, primitive: str, instead: str = "use Engine or RuntimeEndpoint") -> Unsupported:
        """Return the error to raise for a primitive that this backend does not support."""
        return Unsupported(f"the {self.name} backend has no {primitive}; {instead}")


@runtime_checkable
class ServerHandle(Protocol):
    """A server with a backend that calls it, such as ``Runtime``."""

    endpoint: Backend


def checked_backend(backend: Any) -> Backend:
    """Return the given backend; for a Runtime, its endpoint; for None, the default backend.

    Raise ValueError if there is no default, TypeError for a value that is not a backend.
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
    """Call that requests ``params.n`` completions of a prompt."""

    prompt: Prompt
    params: GenParams

    def do(self, backend: Backend) -> list[Completion]:
        return backend.complete(self.prompt, self.params)

    async def ado(self, backend: Backend) -> list[Completion]:
        return await backend.acomplete(self.prompt, self.params)


@dataclass(frozen=True)
class StreamCall:
    """Call that streams one completion. ``show`` is called with each grown completion."""

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
    """Call that selects the best of ``options`` as the continuation of a prompt."""

    prompt: Prompt
    options: tuple[str, ...]
    method: ChoicesMethod

    def do(self, backend: Backend) -> Decision:
        return backend.choose(self.prompt, self.options, self.method)

    async def ado(self, backend: Backend) -> Decision:
        return await backend.achoose(self.prompt, self.options, self.method)


@dataclass(frozen=True)
class Commit:
    """Call that computes and caches a prompt, as a hint."""

    prompt: Prompt

    def do(self, backend: Backend) -> dict[str, Any]:
        return backend.commit(self.prompt)

    async def ado(self, backend: Backend) -> dict[str, Any]:
        return await backend.acommit(self.prompt)


Call: TypeAlias = Complete | StreamCall | Choose | Commit
