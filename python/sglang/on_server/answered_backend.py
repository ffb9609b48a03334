"""AnsweredBackend: the backend of a replay, which answers each call with the server's result.

The k-th call of a stream is the k-th call of that stream in the submission. Further calls, of a
reader that continues from the program's state, go to the real backend.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from sglang.backend.base import Backend, Completion, OwnFunctionCall, Prompt
from sglang.backend.native.native_backend import completions_of
from sglang.backend.output_constraint import OutputConstraint
from sglang.backend.tool_invocation import ToolAnswer
from sglang.errors import SglangError, ToolError
from sglang.ir.choices import ChoicesMethod, Decision
from sglang.ir.params import GenParams
from sglang.on_server.answers import Answers

SetTool: TypeAlias = Callable[[int, str | None], Awaitable[None]]


class ProgramMismatch(SglangError):
    """The server's prompt of a call differs from the prompt in the replay."""


@dataclass(frozen=True)
class ProgramResults:
    """Results that all streams of one replay share.

    Attributes:
        calls: by stream, the numbers of the steps that are calls, in order.
        tools: by step, the variable of a tool that the client runs.
        set_tool: sends the server the text that the tool of a step has returned; None: the tool
            has failed.
    """

    answers: Answers
    calls: Mapping[int, tuple[int, ...]]
    tools: Mapping[int, str]
    set_tool: SetTool


class AnsweredBackend(Backend):
    """Backend of stream number ``stream``. ``backend``: the runtime that runs the program."""

    def __init__(self, backend: Backend, results: ProgramResults, stream: int = 0) -> None:
        self.name, self.chat_template = backend.name, backend.chat_template
        self.constraints, self.native = backend.constraints, backend.native
        self.continues, self.messages_only = backend.continues, backend.messages_only
        self._backend, self._results = backend, results
        self._steps = iter(results.calls.get(stream, ()))

    def of_stream(self, number: int) -> Backend:
        return AnsweredBackend(self._backend, self._results, number)

    def enforces(self, constraint: OutputConstraint) -> bool:
        return self._backend.enforces(constraint)

    async def acomplete(self, prompt: Prompt, params: GenParams) -> list[Completion]:
        if (step := next(self._steps, None)) is None:
            return await self._backend.acomplete(prompt, params)
        return await self._completions(step, prompt, params)

    async def astream(self, prompt: Prompt, params: GenParams) -> AsyncIterator[Completion]:
        if (step := next(self._steps, None)) is None:
            async for completion in self._backend.astream(prompt, params):
                yield completion
            return
        async for text in self._results.answers.growing(step):
            yield Completion(text)
        (last,) = await self._completions(step, prompt, params)
        yield last

    async def _completions(self, step: int, prompt: Prompt, params: GenParams) -> list[Completion]:
        event = await self._results.answers.of(step)
        _verify(prompt, event)
        return completions_of(event["answers"], params)

    async def achoose(
        self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
    ) -> Decision:
        if (step := next(self._steps, None)) is None:
            return await self._backend.achoose(prompt, options, method)
        event = await self._results.answers.of(step)
        _verify(prompt, event)
        return Decision(event["decision"]["text"], dict(event["decision"]["meta"]))

    async def atool(self, call: OwnFunctionCall) -> Any:
        if (step := next(self._steps, None)) is None:
            return await call.arun(self)
        if step not in self._results.tools:
            begin = time.monotonic()
            event = await self._results.answers.of(step)
            return ToolAnswer(event["value"], time.monotonic() - begin)
        try:
            answer = await call.arun(self)
        except ToolError:
            await self._results.set_tool(step, None)
            raise
        await self._results.set_tool(step, answer.text)
        return answer

    async def acommit(self, prompt: Prompt) -> dict[str, Any]:
        return await self._backend.acommit(prompt)


def digest(text: str) -> dict[str, Any]:
    """Return a prompt's characters and the SHA-256 of its UTF-8 bytes, to compare prompts."""
    data = text.encode("utf-8", "surrogatepass")
    return {"chars": len(text), "sha256": hashlib.sha256(data).hexdigest()}


def _verify(prompt: Prompt, event: dict[str, Any]) -> None:
    """Raise ProgramMismatch if the server's prompt differs from the program's."""
    found, own = event.get("prompt"), digest(prompt.text)
    if found is None or {name: found.get(name) for name in own} == own:
        return
    raise ProgramMismatch(
        f"step {event['step']} followed {found.get('chars')} characters on the server, which are "
        f"not the {own['chars']} of the program here that end {prompt.text[-40:]!r}; "
        "is a value transformed differently there, or the chat template another one?"
    )
