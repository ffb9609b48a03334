"""ModelToolCall: one call of a tool by a model, with its result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sglang.backend.tool_invocation import TOOLS, is_async
from sglang.errors import Cancelled, InvalidOutput, ToolError
from sglang.tools.program_tool import ProgramTool, arguments_shown, text_of_result

ERROR_CHARS = 2000


class _NoValueError(Exception):
    """A call has no value, because it exceeded its time or its function raised an exit or an
    interrupt. The message gives the reason."""


@dataclass(frozen=True)
class ModelToolCall:
    """A call of a tool.

    Attributes:
        id: id to which the result refers, unique in the state.
        arguments: JSON text as the model generated it.
        value: return value of the function; for a tool that is a type, an object of the type.
        result: text that the model reads. None: the program must answer the call.
        error: the reason why there is no value, "" after success.
        round: index of the model's turn that made the call, from 0.
        seconds: duration of the function's call.
    """

    id: str
    name: str
    arguments: str
    value: Any = None
    result: str | None = None
    error: str = ""
    round: int = 0
    seconds: float = 0.0

    @property
    def plain(self) -> dict[str, Any]:
        """The call as JSON data: ``id``, ``name``, ``arguments``, ``result`` and ``error``."""
        shown = arguments_shown(self.arguments)
        return {"id": self.id, "name": self.name, "arguments": shown, "result": self.result,
                "error": self.error}  # fmt: skip

    @property
    def sent(self) -> dict[str, Any]:
        """The call in the form of a message of OpenAI's API."""
        function = {"name": self.name, "arguments": self.arguments}
        return {"id": self.id, "type": "function", "function": function}


class CallValue:
    """Type of the variable ``NAME_calls``: converts an entry to a ModelToolCall. It has no
    constraint, so files of results do not keep it."""

    constraint = None

    def __init__(self, calls: Sequence[ModelToolCall]) -> None:
        self._calls = tuple(calls)

    def value(self, entry: dict[str, Any], meta: dict[str, Any]) -> ModelToolCall:
        """Return the call of an entry, with its function's return value. ``meta["index"]`` selects
        the call, because ids of some services are unique per turn only."""
        index: int = meta["index"]
        return self._calls[index]


async def answered(
    calls: Sequence[ModelToolCall], tools: Sequence[ProgramTool], timeout: float | None
) -> list[ModelToolCall]:
    """Run the functions of ``calls`` in parallel and return the calls with their results.

    An exception of a function, invalid arguments and an unknown name become an error text that the
    model reads as the result. ``timeout``: limit of each call in seconds, None for no limit. Raise
    ToolError for a result that is not representable as JSON.
    """
    known = {tool.name: tool for tool in tools}
    jobs = [asyncio.ensure_future(_answered(call, known, timeout)) for call in calls]
    try:
        return list(await asyncio.gather(*jobs))
    finally:
        for job in jobs:
            job.cancel()


async def _answered(
    call: ModelToolCall, known: dict[str, ProgramTool], timeout: float | None
) -> ModelToolCall:
    tool = known.get(call.name)
    if tool is None:
        return _failed(call, f"there is no tool {call.name!r}; there are {', '.join(known)}")
    try:
        arguments = tool.argued(call.arguments)
    except InvalidOutput as error:
        return _failed(call, f"the arguments do not fit: {error}")
    if tool.function is None:
        return replace(call, value=arguments)
    begin = time.monotonic()
    try:
        value = await _in_time(_called(tool, arguments), timeout)
    except Cancelled:
        raise
    except _NoValueError as error:
        return _failed(call, str(error), time.monotonic() - begin)
    except Exception as error:
        return _failed(call, _said(error), time.monotonic() - begin)
    seconds = time.monotonic() - begin
    try:
        return replace(call, value=value, result=text_of_result(tool.name, value), seconds=seconds)
    except ValueError as error:
        raise ToolError(str(error)) from error


async def _in_time(call: Coroutine[Any, Any, Any], timeout: float | None) -> Any:
    """Return the value of ``call``. Raises the call's errors, including its own TimeoutError, and
    _NoValueError after ``timeout`` seconds."""
    job = asyncio.ensure_future(call)
    try:
        done, _ = await asyncio.wait({job}, timeout=timeout)
        if not done:
            raise _NoValueError(f"it took more than {timeout:g} s")
        return job.result()
    finally:
        if not job.done():
            job.cancel()
            await asyncio.wait({job})


async def _called(tool: ProgramTool, arguments: dict[str, Any]) -> Any:
    """Call the function: an asynchronous one in this event loop, another one in a thread. Its
    SystemExit or KeyboardInterrupt, which would end the event loop, becomes _NoValueError."""
    assert tool.function is not None
    if not is_async(tool.function):
        return await asyncio.wrap_future(TOOLS.call(_contained, tool.function, arguments))
    try:
        return await tool.function(**arguments)
    except (SystemExit, KeyboardInterrupt) as error:
        raise _NoValueError(_said(error)) from error


def _contained(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    try:
        return function(**arguments)
    except (SystemExit, KeyboardInterrupt) as error:
        raise _NoValueError(_said(error)) from error


def _failed(call: ModelToolCall, why: str, seconds: float = 0.0) -> ModelToolCall:
    why = why[:ERROR_CHARS]
    return replace(call, result=f"error: {why}", error=why, seconds=seconds)


def _said(error: BaseException) -> str:
    """Return the error's type and text. A ``__str__`` that raises is reported as the text."""
    try:
        text = str(error)
    except Exception as own:
        text = f"its text cannot be read: __str__ raised {type(own).__name__}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
