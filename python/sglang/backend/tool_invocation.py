"""Tool invocations: calls of the program's own functions, in a thread or in an event loop."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from sglang.backend.base import Backend, Prompt
from sglang.backend.cancel import aborted_by
from sglang.backend.worker_threads import WORKERS, Workers
from sglang.errors import Cancelled, SglangError, ToolError
from sglang.ir.graph_steps import Argument, Variable
from sglang.ir.nodes import ConstantText, RunTool, node_of

# Threads of tools. The number of executors that wait for tools is bounded, so this limit is high.
TOOLS = Workers(limit=100_000)
MAX_SECONDS = int(threading.TIMEOUT_MAX)  # longest wait of a thread


class ToolAnswer(NamedTuple):
    """Text that a tool returned, and its seconds."""

    text: str
    seconds: float


@dataclass(frozen=True)
class ToolInvocation:
    """One call of ``function`` by a program. ``prompt``: the program's text so far."""

    prompt: Prompt
    node: RunTool
    function: Callable[..., Any]
    arguments: tuple[str, ...]

    def do(self, backend: Backend) -> ToolAnswer:
        """Call the function and wait. An asynchronous function gets a new event loop.

        With ``use_thread=False`` a plain function without ``timeout`` runs in the calling thread.
        A function that exceeds ``timeout`` continues in its thread, and its result is dropped.
        Raise ToolError, and a SglangError of the function unchanged.
        """
        self._hint(backend)
        begin = time.monotonic()
        try:
            value = self._waited()
        except SglangError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return self._answer(value, begin)

    async def ado(self, backend: Backend) -> ToolAnswer:
        """Call the function in an event loop, unless ``backend`` answers in its place."""
        return await backend.atool(self)  # type: ignore[no-any-return]

    async def arun(self, backend: Backend) -> ToolAnswer:
        """Call the function: an asynchronous one in this event loop, another one in a thread."""
        self._hint(backend)
        begin = time.monotonic()
        try:
            value = await self._awaited()
        except SglangError:
            raise
        except Exception as error:
            raise self._failure(error) from error
        return self._answer(value, begin)

    def _hint(self, backend: Backend) -> None:
        backend.pause_hint(self.prompt, self.node.tool, self.node.expected_seconds)

    def _waited(self) -> Any:
        inline = not WORKERS.own_thread() and self.node.timeout is None
        if inline and not is_async(self.function):
            return self._called()
        job = self._in_a_loop if is_async(self.function) else self._called
        future, done = TOOLS.call(job), threading.Event()
        future.add_done_callback(lambda _: done.set())
        with aborted_by(done.set), WORKERS.released():
            in_time = done.wait(self.node.timeout)
        if not in_time:
            raise self._overdue()
        if not future.done():
            raise Cancelled(f"the run was cancelled while tool {self.node.tool!r} ran")
        return future.result()

    def _called(self) -> Any:
        """Call a plain function. A KeyboardInterrupt of the user, in the main thread, is raised."""
        try:
            return self.function(*self.arguments)
        except Exception:
            raise
        except BaseException as error:
            interrupt = isinstance(error, KeyboardInterrupt)
            if interrupt and threading.current_thread() is threading.main_thread():
                raise
            raise self._failure(error) from error

    async def _called_in_a_loop(self) -> Any:
        """Call an asynchronous function. Its exits and interrupts become ToolError."""
        try:
            return await self.function(*self.arguments)
        except (SystemExit, KeyboardInterrupt) as error:
            raise self._failure(error) from error

    def _in_a_loop(self) -> Any:
        return asyncio.run(self._awaited())

    async def _awaited(self) -> Any:
        if is_async(self.function):
            job: Awaitable[Any] = self._called_in_a_loop()
        else:
            job = asyncio.wrap_future(TOOLS.call(self._called))
        task = asyncio.ensure_future(job)
        try:
            done, _ = await asyncio.wait({task}, timeout=self.node.timeout)
            if not done:
                raise self._overdue()
            if task.cancelled():  # by the function itself; a cancelled run ends at ``wait``
                raise self._failure(asyncio.CancelledError())
            return task.result()
        finally:
            task.cancel()

    def _overdue(self) -> ToolError:
        return ToolError(f"tool {self.node.tool!r} took more than timeout={self.node.timeout} s")

    def _failure(self, error: BaseException) -> ToolError:
        kind, said = type(error).__name__, _shown(str, error)
        return ToolError(f"tool {self.node.tool!r} raised {kind}" + (f": {said}" if said else ""))

    def _answer(self, value: Any, begin: float) -> ToolAnswer:
        seconds = time.monotonic() - begin
        if value is None or isinstance(value, str):
            return ToolAnswer(value or "", seconds)
        try:
            return ToolAnswer(json.dumps(value, ensure_ascii=False, allow_nan=False), seconds)
        except Exception as error:
            shown = _shown(repr, value) or type(value).__name__
            raise ToolError(
                f"tool {self.node.tool!r} returned {shown:.60}, which JSON cannot carry; it must "
                "return a text, None, or finite numbers, lists and dicts"
            ) from error


def _shown(show: Callable[[Any], str], value: Any) -> str:
    """Return ``show(value)``, "" if it raises. ``show``: ``str`` or ``repr``."""
    try:
        return show(value)
    except Exception:
        return ""


def is_async(function: Callable[..., Any]) -> bool:
    """Return True if a call of ``function`` returns a coroutine."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004
    )


def tool_name(function: Callable[..., Any]) -> str:
    """Return the name of a function for graphs and error messages."""
    return str(getattr(function, "__name__", type(function).__name__))


def verify_tool(name: Any, function: Any, of: Any, **seconds: Any) -> None:
    """Raise TypeError or ValueError for invalid arguments of ``sglang.tool``."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"name is {name!r:.60}; give the name of the tool's variable")
    for what, value in seconds.items():
        if value is None or (isinstance(value, (int, float)) and 0 < value <= MAX_SECONDS):
            continue
        shown = _shown(repr, value) or "a number that is too long"
        raise ValueError(f"{what} is {shown:.60}; give seconds above 0, at most {MAX_SECONDS}")
    _verify_function(function, of is not None)
    if of is None or isinstance(of, str):
        return
    if all(isinstance(atom, (ConstantText, Argument, Variable)) for atom in node_of(of).flat()):
        raise TypeError(
            f"of of tool {tool_name(function)!r} is a value; store it, s['x'] = value, and give "
            "of='x'"
        )


def _verify_function(function: Any, count: int) -> None:
    if not callable(function):
        raise TypeError(f"a tool is a function, not {function!r:.60}")
    name = tool_name(function)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"tool {name!r} yields: a tool returns its text; use return")
    try:
        signature = inspect.signature(function)
    except ValueError:  # some functions in C have no signature
        return
    try:
        signature.bind(*[""] * count)
    except TypeError as error:
        given = "one text, as of= is given" if count else "no argument, as of= is not given"
        raise TypeError(f"tool {name!r} is called with {given}: {error}") from None
