"""StepRunner: waits for the inputs of each step of a program and applies the step to its stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar, Protocol

from sglang.ir.choices import METHODS, Decision
from sglang.semantics import reasoning
from sglang.semantics.choice_requests import Requests, choice_requests
from sglang.semantics.transforms import text_of, transformed
from sglang.srt.programs.submission import (
    REASONING,
    AnyStep,
    ChooseStep,
    ForkStep,
    GenStep,
    JoinStep,
    Key,
    MediaStep,
    Ref,
    ScopeBeginStep,
    ScopeEndStep,
    SetStep,
    TextStep,
    ToolStep,
    TransformStep,
    ValueStep,
)
from sglang.srt.programs.submission_check import CheckedProgram
from sglang.srt.requests.completion.completion_request import UNREAD
from sglang.srt.requests.request_error import RequestError, shown
from sglang.srt.runtime.programs.model_calls import SHOWN_TOKENS, Body, Fields, Show
from sglang.srt.runtime.programs.promises import Promise
from sglang.srt.runtime.programs.run_events import RunEvents
from sglang.srt.runtime.programs.run_tools import RunTools
from sglang.srt.runtime.programs.semantic_variables import SemanticVariable, size_of
from sglang.srt.runtime.programs.stream_text import Medium, StreamText
from sglang.srt.runtime.toolbox.tool_processes import Toolbox

SMALL = 512  # most bytes of a value transformed on the event loop: a pattern takes milliseconds
MAX_LIST = 4 << 20  # most bytes of a value that is a list of other values
Shower = tuple[Show, int]
"""A callback for a growing text, and the number of tokens between two calls of it."""


class StepHost(Protocol):
    """Interface of a run for its steps (``ProgramRun``)."""

    program: CheckedProgram
    tools: RunTools
    log: RunEvents
    variables: dict[Key, SemanticVariable]
    ends: dict[int, Promise]
    read_as_text: frozenset[int | None]

    def begin(self, number: int, text: StreamText) -> None:
        """Begin the stream ``number`` with a text."""

    def promise(self, ref: Ref) -> SemanticVariable:
        """Return the variable of the run, or of its session, that ``ref`` names."""
        ...

    def hold(self, size: int) -> None:
        """Count the bytes of a new value. Raises RequestError if the tenant's limit is exceeded."""

    def log_event(self, event: dict[str, Any]) -> None:
        """Add an event to the log of the run."""

    def started(self, step: AnyStep) -> None:
        """Record that a call begins."""

    def done(self, step: AnyStep, facts: dict[str, Any]) -> None:
        """Record that a call has succeeded. ``facts``: further fields of the event."""

    async def ask(
        self, step: AnyStep, fields: Fields, body: Body, text: StreamText, shower: Shower | None
    ) -> Any:
        """Return the model's answer to ``body()``. ``fields``: the body's fields except the prompt.
        Raises RequestError and EngineLost."""
        ...

    async def compute_ahead(self, prompt: str, text: StreamText) -> bool:
        """Compute a prefix of a later prompt; return whether it was computed."""
        ...


class StepRunner:
    """Runs the steps of one program, in all its streams. ``visit`` raises RequestError, EngineLost,
    StepFailed and TransformError."""

    def __init__(self, run: StepHost) -> None:
        self._run, self._program = run, run.program
        self._ahead_chars = 0 if run.program.salted else run.tools.ahead_chars

    async def visit(self, step: AnyStep, text: StreamText) -> None:
        """Run a step of the stream that has the text ``text``."""
        await self.handlers[type(step)](self, step, text)

    # -- text and values ---------------------------------------------------------------------------

    async def _text(self, step: TextStep, text: StreamText) -> None:
        self._append(text, step.text)

    async def _value(self, step: ValueStep, text: StreamText) -> None:
        value, size = await self._resolved(step, text, grows=not step.transform)
        made = text_of(await self._transformed(step, value, size))
        if made is not value:
            self._run.hold(size_of(made))
        self._append(text, made, variable=True)

    async def _set(self, step: SetStep, text: StreamText) -> None:
        value, size = await self._resolved(step, text)
        self._define(step, text, step.name, value, size)

    async def _transform(self, step: TransformStep, text: StreamText) -> None:
        value, size = await self._resolved(step, text)
        run = self._run
        run.log_event({"event": "started", "step": step.number})
        value = await self._transformed(step, value, size)
        self._define(step, text, step.name, value)
        run.log_event({"event": "done", "step": step.number, "value": value})

    async def _transformed(self, step: AnyStep, value: Any, size: int) -> Any:
        """Return a value of ``size`` bytes after the step's transforms. Raises TransformError."""
        transforms = self._program.transforms[step.number]
        if not transforms or size <= SMALL:
            return transformed(transforms, value)
        return await asyncio.to_thread(transformed, transforms, value)

    async def _scope_begin(self, step: ScopeBeginStep, text: StreamText) -> None:
        text.scopes.append((step.name, text.length))

    async def _scope_end(self, step: ScopeEndStep, text: StreamText) -> None:
        scope = [scope for scope in text.scopes if scope[0] == step.name][-1]
        text.scopes.remove(scope)
        self._define(step, text, step.name, text.text[scope[1] :])

    async def _media(self, step: MediaStep, text: StreamText) -> None:
        source, _ = await self._resolved(step, text)
        if not isinstance(source, str):
            raise RequestError(f"the source is {shown(source)}; it must be a text.")
        text.media.append(Medium(text.length, step.kind, source, step.num_frames))
        self._append(text, step.marker)

    def _append(self, text: StreamText, more: str, variable: bool = False) -> None:
        self._run.tools.verify_chars(text.length + len(more))
        text.append(more, variable)

    def _define(
        self, step: AnyStep, text: StreamText, name: str, value: Any, size: int | None = None
    ) -> None:
        """Set a variable to a value of ``size`` bytes (None: to be computed)."""
        promise = self._run.variables[step.number, name]
        promise.size = size_of(value) if size is None else size
        self._run.hold(promise.size)
        text.variables[name] = promise
        promise.set(value)

    async def _resolved(
        self, step: AnyStep, text: StreamText, grows: bool = False
    ) -> tuple[Any, int]:
        """Wait for the value that a step reads; return the value and its size in bytes. ``grows``:
        the value's text is appended unchanged, so its beginning can be computed ahead."""
        [value] = self._program.values[step.number]
        return await self._resolve(value, text, grows)

    async def _resolve(self, value: Any, text: StreamText, grows: bool) -> tuple[Any, int]:
        if isinstance(value, Ref):
            if value.argument is not None:
                argument = self._program.arguments[value.argument]
                return await self._resolve(argument, text, grows)
            promise = self._run.promise(value)
            return await self._awaited(promise, text, grows), promise.size
        if not isinstance(value, list):
            return value, size_of(value)
        found, size = [], 2
        for item in value:
            one, more = await self._resolve(item, text, False)
            found.append(one)
            size = self._bounded(size + more + 1)
        return found, size

    def _bounded(self, size: int) -> int:
        """Return the size of a list. Raises RequestError if it is too large. The limit is needed
        because repeated entries are one object: a small program could build a huge list."""
        if size > MAX_LIST:
            raise RequestError(f"the list has more than {MAX_LIST} bytes, the most; gather less.")
        return size

    # -- waiting -----------------------------------------------------------------------------------

    async def _awaited(self, promise: Promise, text: StreamText, grows: bool) -> Any:
        """Wait for the value of a promise and return it. Meanwhile the engine computes the stream's
        text ahead."""
        if promise.settled or not self._ahead_chars or text.media or text.parallel:
            return await promise.result()
        ahead = asyncio.ensure_future(self._compute_ahead(promise if grows else None, text))
        try:
            return await promise.result()
        finally:
            ahead.cancel()
            await asyncio.gather(ahead, return_exceptions=True)

    async def _compute_ahead(self, growing: Promise | None, text: StreamText) -> None:
        """Compute the stream's text ahead, and again whenever the following value (``growing``) has
        grown enough."""
        run, done = self._run, 0
        while True:
            more = (growing.text if growing is not None else None) or ""
            size = text.length + len(more)
            enough = size - done >= self._ahead_chars
            if enough and await run.compute_ahead(text.text + more, text):
                done = size
            if growing is None or growing.settled:
                return
            await growing.growth()

    # -- calls -------------------------------------------------------------------------------------

    async def _gen(self, step: GenStep, text: StreamText) -> None:
        run, settings = self._run, dict(step.body.get("sampling_params") or {})
        fields = dict(step.body)
        looks = settings.get("max_new_tokens") == 0 and bool(
            step.body.get("return_logprob") or step.body.get("top_logprobs_num")
        )
        if looks:  # the log-probabilities of the next token, whose text is dropped
            fields["sampling_params"] = {**settings, "max_new_tokens": 1}
        digest = text.digest()
        text.mark()
        run.started(step)
        shower = self._shower(step)
        answer = await run.ask(step, fields, lambda: fields | text.prompt(), text, shower)
        answers = answer if isinstance(answer, list) else [answer]
        texts = ["" if looks else _completed(each) for each in answers]
        if step.reasoning:
            thoughts, texts = map(list, zip(*(reasoning.split(t, step.reasoning) for t in texts)))
        several = len(texts) > 1
        self._append(text, texts[0], variable=True)
        if step.name is not None:
            if step.reasoning:
                value = thoughts if several else thoughts[0]
                self._define(step, text, step.name + REASONING, value)
            self._define(step, text, step.name, texts if several else texts[0])
        run.done(step, {"answers": answers, "prompt": digest})

    def _shower(self, step: GenStep) -> Shower | None:
        """Return the callback for the growing text and its interval; None for several texts."""
        run = self._run
        if step.name is None or step.reasoning:
            promise = None
        else:
            promise = run.variables[step.number, step.name]
        if ((step.body.get("sampling_params") or {}).get("n") or 1) != 1:
            return None

        def show(text: str) -> None:
            if promise is not None:
                promise.grow(text)
            run.log.grow(step.number, text)

        if run.log.growers:
            return show, run.tools.stream_interval
        read = step.number in run.read_as_text and self._ahead_chars
        return show, (SHOWN_TOKENS if read else UNREAD)

    async def _choose(self, step: ChooseStep, text: StreamText) -> None:
        run = self._run
        if text.parallel:
            raise RequestError(
                "a choose cannot score after join('concate_and_append'); use gen and compare its "
                "text."
            )
        adapter = {}
        if step.adapter is not None and step.adapter.lora_path:
            adapter = {"lora_path": step.adapter.lora_path}
        digest = text.digest()
        text.mark()
        run.started(step)

        def scoring() -> Requests[Decision]:
            """Generate the requests. The text is joined when the first request is made."""
            method, media = METHODS[step.method], text.media_fields()
            return (yield from choice_requests(text.text, media, adapter, step.options, method))

        requests = scoring()
        body: Body = partial(next, requests)
        while True:
            answer = await run.ask(step, adapter, body, text, None)
            try:
                body = partial(dict, requests.send(answer))
            except StopIteration as end:
                decision = end.value
                break
        self._append(text, decision.text, variable=True)
        if step.name is not None:
            self._define(step, text, step.name, decision.text)
        made = {"text": decision.text, "meta": decision.meta}
        run.done(step, {"decision": made, "prompt": digest})

    async def _tool(self, step: ToolStep, text: StreamText) -> None:
        run, given = self._run, None
        if step.of is not None:
            value, _ = await self._resolved(step, text)
            given = text_of(value)
        run.started(step)
        if step.where == "server":
            work: Awaitable[Any] = self._in_toolbox(step, given)
        else:
            variable = run.variables[step.number, step.name]
            run.log_event(
                {"event": "waiting", "step": step.number, "tool": step.tool, "of": given,
                 "semantic_var_id": variable.id}
            )  # fmt: skip
            work = self._awaited(variable, text, False)
        try:
            result = await asyncio.wait_for(work, step.timeout)
        except asyncio.TimeoutError:
            raise RequestError(
                f"tool {step.tool!r:.80} has not answered in {step.timeout:g} s.", code="expired"
            ) from None
        result = text_of(result)
        self._append(text, result, variable=True)
        text.variables[step.name] = run.variables[step.number, step.name]
        if step.where == "server":
            self._define(step, text, step.name, result)
        run.done(step, {"value": result})

    async def _in_toolbox(self, step: ToolStep, given: str | None) -> str:
        toolbox = self._run.tools.toolbox()
        assert toolbox is not None  # the submission was checked
        found = await toolbox.call(step.tool, arguments_of(toolbox, step.tool, given))
        if found.failed:
            raise RequestError(f"tool {step.tool!r:.80}: {found.text}")
        return found.text

    # -- forks -------------------------------------------------------------------------------------

    async def _fork(self, step: ForkStep, text: StreamText) -> None:
        for child in step.children:
            self._run.begin(child, text.copy())

    async def _join(self, step: JoinStep, text: StreamText) -> None:
        branches: list[StreamText] = [await self._run.ends[end].result() for end in step.ends]
        if step.mode == "gather_variable":
            for name in step.names:
                promises = [branch.variables.get(name) for branch in branches]
                values = [None if each is None else each.value for each in promises]
                size = 2 + sum(9 if each is None else each.size + 1 for each in promises)
                self._define(step, text, name, values, self._bounded(size))
            return
        texts = []
        for number, branch in enumerate(branches):
            begin, media, parallel = branch.origin
            if len(branch.media) > media or len(branch.parallel) > parallel:
                what = "an image" if len(branch.media) > media else "a join of its own"
                raise RequestError(
                    f"branch {number} holds {what}, which cannot be joined by "
                    "'concate_and_append'; append it before the fork."
                )
            texts.append(branch.text[begin:])
        self._run.tools.verify_chars(text.length + sum(map(len, texts)))
        self._run.hold(sum(map(size_of, texts)))
        text.append_parallel(texts)

    handlers: ClassVar[dict[type, Callable[..., Awaitable[None]]]] = {
        TextStep: _text,
        ValueStep: _value,
        SetStep: _set,
        TransformStep: _transform,
        ScopeBeginStep: _scope_begin,
        ScopeEndStep: _scope_end,
        MediaStep: _media,
        GenStep: _gen,
        ChooseStep: _choose,
        ToolStep: _tool,
        ForkStep: _fork,
        JoinStep: _join,
    }


def _completed(answer: dict[str, Any]) -> str:
    """Return the text of an answer. Raises RequestError if the engine did not complete it."""
    finish = answer["meta_info"].get("finish_reason") or {}
    if finish.get("type") == "abort":
        raise RequestError(f"the request was aborted: {finish.get('message')}", code="conflict")
    if finish.get("type") == "error":
        raise RequestError(f"no text can follow {answer['text']!r:.80}: {finish.get('message')}")
    return str(answer["text"])


def arguments_of(toolbox: Toolbox, name: str, given: str | None) -> str:
    """Return a tool's arguments as JSON for one text. For a tool with one required parameter, the
    text is its value; for another tool, the text itself is the JSON object of arguments."""
    if given is None:
        return "{}"
    schema = toolbox.tools[name]["function"].get("parameters") or {}
    parameters = schema.get("properties") or {}
    required = schema.get("required") or list(parameters)
    if len(required) == 1:
        return json.dumps({required[0]: given})
    return given
