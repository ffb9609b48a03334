"""Drive: makes the calls that the interpreter yields, in a thread or in an event loop."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import nullcontext
from typing import Any

from sglang.backend.base import Backend, Call, Complete, StreamCall
from sglang.backend.cancel import Cancellation
from sglang.backend.tool_invocation import ToolInvocation
from sglang.run.history import HISTORY
from sglang.run.recording import Visit

UNRECORDED: nullcontext[None] = nullcontext()


def drive(
    steps: Generator[Call | ToolInvocation, Any, None],
    backend: Backend,
    cancellation: Cancellation,
    visit: Visit | None = None,
) -> None:
    """Make each call of ``steps`` and send its answer back, until the steps end. Raises the errors
    of the calls. ``visit`` records the calls."""
    answer: Any = None
    with cancellation.active(), visit or UNRECORDED:
        while True:
            try:
                call = steps.send(answer)
            except StopIteration:
                return
            with HISTORY.call(backend.name, _kept(call)) as entry:
                if visit is None:
                    answer = entry.answer = call.do(backend)
                    continue
                with visit.asking(backend, call) as asked:
                    answer = entry.answer = asked.answer = asked.call.do(backend)


async def adrive(
    steps: Generator[Call | ToolInvocation, Any, None],
    backend: Backend,
    cancellation: Cancellation,
    visit: Visit | None = None,
) -> None:
    """Make the calls of ``steps`` as ``drive`` does, in an event loop."""
    answer: Any = None
    with cancellation.active(), visit or UNRECORDED:
        while True:
            try:
                call = steps.send(answer)
            except StopIteration:
                return
            with HISTORY.call(backend.name, _kept(call)) as entry:
                if visit is None:
                    answer = entry.answer = await call.ado(backend)
                    continue
                with visit.asking(backend, call) as asked:
                    answer = entry.answer = asked.answer = await asked.call.ado(backend)


def _kept(call: Call | ToolInvocation) -> Call | ToolInvocation:
    """Return the call without its ``show`` function, because the history outlives the run."""
    return Complete(call.prompt, call.params) if isinstance(call, StreamCall) else call
