"""AnsweredBackend: the backend of a replay, which answers each call with the server's result.

The k-th call of a stream is the k-th call of that stream in the submission. A call behind the last
one, as of a state that the program's reader goes on with, goes to the backend itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from sglang.backend.base import Backend, Completion, OwnFunctionCall, Prompt
from sglang.backend.native.native_backend import completions_of
from sglang.backend.output_constraint import OutputConstraint
from sglang.errors import SglangError, ToolError
from sglang.ir.choices import ChoicesMethod, Decision
from sglang.ir.params import GenParams
from sglang.on_server.answers import Answers

Calls: TypeAlias = dict[int, tuple[int, ...]]
SetTool: TypeAlias = Callable[[int, str | None], Awaitable[None]]


class ProgramMismatch(SglangError):
    """The server has put another prompt in front of a call than the program has."""


class AnsweredBackend(Backend):
    """The backend of one stream.

    Args:
        backend: the runtime that runs the program.
        calls: of each stream, the steps that are calls, in order.
        set_tool: tells the server the text that a tool has returned at a step; None: that it has
            failed.
    """

    def __init__(
        self, backend: Backend, answers: Answers, calls: Calls, set_tool: SetTool, stream: int = 0
    ) -> None:
        self.name, self.chat_template = backend.name, backend.chat_template
        self.constraints, self.native = backend.constraints, backend.native
        self.continues, self.messages_only = backend.continues, backend.messages_only
        self._backend, self._answers, self._set_tool = backend, answers, set_tool
        self._calls, self._steps = calls, iter(calls.get(stream, ()))

    def of_stream(self, number: int) -> Backend:
        return AnsweredBackend(self._backend, self._answers, self._calls, self._set_tool, number)

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
        async for text in self._answers.growing(step):
            yield Completion(text)
        (last,) = await self._completions(step, prompt, params)
        yield last

    async def _completions(self, step: int, prompt: Prompt, params: GenParams) -> list[Completion]:
        event = await self._answers.of(step)
        _verify(prompt, event)
        return completions_of(event["answers"], params)

    async def achoose(
        self, prompt: Prompt, options: Sequence[str], method: ChoicesMethod
    ) -> Decision:
        if (step := next(self._steps, None)) is None:
            return await self._backend.achoose(prompt, options, method)
        event = await self._answers.of(step)
        _verify(prompt, event)
        return Decision(event["decision"]["text"], dict(event["decision"]["meta"]))

    async def atool(self, call: OwnFunctionCall) -> Any:
        step = next(self._steps, None)
        try:
            answer = await call.arun(self)
        except ToolError:
            if step is not None:
                await self._set_tool(step, None)
            raise
        if step is not None:
            await self._set_tool(step, answer.text)
        return answer

    async def acommit(self, prompt: Prompt) -> dict[str, Any]:
        return await self._backend.acommit(prompt)


def digest(text: str) -> dict[str, Any]:
    """Characters of a prompt, and SHA-256 of its UTF-8 bytes: two of them are compared by these."""
    data = text.encode("utf-8", "surrogatepass")
    return {"chars": len(text), "sha256": hashlib.sha256(data).hexdigest()}


def _verify(prompt: Prompt, event: dict[str, Any]) -> None:
    """Raise ProgramMismatch where the server's prompt is not the program's."""
    found, own = event.get("prompt"), digest(prompt.text)
    if found is None or {name: found.get(name) for name in own} == own:
        return
    raise ProgramMismatch(
        f"step {event['step']} followed {found.get('chars')} characters on the server, which are "
        f"not the {own['chars']} of the program here that end {prompt.text[-40:]!r}; "
        "is a value transformed differently there, or the chat template another one?"
    )
