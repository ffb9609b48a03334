"""Toolbox: the child processes that run the operator's tools, and their deadlines.

The operator's module is imported by the children alone. A child runs one call at a time. It is
killed, with all processes it has started, where a call is late or its request has ended; another
is started when one is needed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from sglang.srt.config import ToolboxConfig
from sglang.srt.runtime.toolbox.tool_child import MAX_RESULT_CHARS

log = logging.getLogger("sglang.toolbox")

START_SECONDS = 60.0  # for a child to import the module
LINE_BYTES = 16 << 20  # of definitions; a result has at most 12 bytes a character
SECRETS = ("SGLANG_API_KEY", "SGLANG_ADMIN_API_KEY")  # variables that no child gets


class ToolboxError(Exception):
    """The module of tools cannot be used."""


class ToolResult(NamedTuple):
    """Text for the model. ``failed``: it says what went wrong."""

    text: str
    failed: bool = False


Ran = Callable[[str, float, bool], None]


class Toolbox:
    """The tools of a server.

    Attributes:
        tools: definitions in OpenAI's form, by name.
        max_calls: calls of a request that does not say how many.
    """

    def __init__(self, config: ToolboxConfig, ran: Ran = lambda *_: None) -> None:
        """``ran``: is given the name, the seconds and whether it failed, of every call."""
        self.max_calls = config.toolbox_max_calls
        self.tools: Mapping[str, dict[str, Any]] = {}
        self._spec, self._timeout = config.toolbox, config.toolbox_timeout
        self._ran = ran
        self._slots = asyncio.Semaphore(config.toolbox_processes)
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()
        self._reapers: set[asyncio.Future[None]] = set()

    async def start(self) -> None:
        """Start a child and read the tools' definitions. Raise ToolboxError."""
        child = await self._started()
        self.tools = child.tools
        self._idle.append(child)
        log.info("toolbox %s: %s", self._spec, ", ".join(self.tools))

    async def call(self, name: str, arguments: str) -> ToolResult:
        """Return the result of a tool, or the text that tells the model what went wrong.

        ``arguments`` is JSON text. A call that is cancelled ends with its child.
        """
        begin, result = time.monotonic(), ToolResult("Error: the request has ended.", True)
        try:
            result = await self._call(name, arguments)
        finally:
            self._ran(name, time.monotonic() - begin, result.failed)
        return result

    async def _call(self, name: str, arguments: str) -> ToolResult:
        try:
            await asyncio.wait_for(self._slots.acquire(), self._timeout)
        except asyncio.TimeoutError:
            return ToolResult("Error: the server's tools are busy; try again later.", True)
        try:
            return await self._in_child(name, arguments)
        finally:
            self._slots.release()

    async def _in_child(self, name: str, arguments: str) -> ToolResult:
        child: _Child | None = None
        try:
            child = await self._free()
            answer = await asyncio.wait_for(child.ask(name, arguments), self._timeout)
        except asyncio.TimeoutError:
            text = f"{name} took more than {self._timeout:g} s and was ended"
        except ToolboxError as error:
            log.error("tool %s: %s", name, error)
            text = "the server cannot run its tools now"
        except (OSError, EOFError, ValueError):
            text = f"the process of {name} has ended without a result"
        else:
            self._idle.append(child)
            child = None
            failed = "error" in answer
            return ToolResult(f"Error: {answer['error']}" if failed else answer["text"], failed)
        finally:
            if child is not None:
                self._end(child)
        return ToolResult(f"Error: {text}.", True)

    async def _free(self) -> _Child:
        while self._idle:
            child = self._idle.pop()
            if child.alive:
                return child
            self._children.discard(child)
        return await self._started()

    async def _started(self) -> _Child:
        child = await _Child.start(self._spec)
        self._children.add(child)
        try:
            await asyncio.wait_for(child.introduced(), START_SECONDS)
        except BaseException as error:
            self._end(child)
            if isinstance(error, asyncio.TimeoutError):
                raise ToolboxError(
                    f"--toolbox {self._spec}: no tools in {START_SECONDS:g} s"
                ) from None
            raise
        return child

    def _end(self, child: _Child) -> None:
        """Kill a child; it is forgotten when it has gone."""
        child.kill()
        reaper = asyncio.ensure_future(child.gone())
        self._reapers.add(reaper)
        reaper.add_done_callback(self._reapers.discard)
        reaper.add_done_callback(lambda _: self._children.discard(child))

    async def close(self) -> None:
        """End all children."""
        self._idle.clear()
        for child in tuple(self._children):
            self._end(child)
        await asyncio.gather(*self._reapers)


class _Child:
    """One process. ``tools``: the definitions that it has read."""

    def __init__(self, process: asyncio.subprocess.Process, spec: str) -> None:
        self._process, self._spec = process, spec
        self.tools: dict[str, dict[str, Any]] = {}

    @staticmethod
    async def start(spec: str) -> _Child:
        """Start a process. Raise ToolboxError."""
        environment = {name: value for name, value in os.environ.items() if name not in SECRETS}
        command = [sys.executable, "-m", "sglang.srt.runtime.toolbox.tool_child"]
        try:
            process = await asyncio.create_subprocess_exec(
                *command, spec, str(os.getpid()), stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE, env=environment, start_new_session=True,
                limit=LINE_BYTES,
            )  # fmt: skip
        except OSError as error:
            raise ToolboxError(f"--toolbox {spec}: no process can be started: {error}") from error
        return _Child(process, spec)

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    async def introduced(self) -> None:
        """Read the definitions. Raise ToolboxError where the module cannot be used."""
        try:
            found = await self._line()
        except (EOFError, ValueError):
            raise ToolboxError(f"--toolbox {self._spec}: its process has ended") from None
        if "error" in found:
            raise ToolboxError(f"--toolbox {self._spec}: {found['error']}")
        self.tools = found["tools"]

    async def ask(self, name: str, arguments: str) -> dict[str, str]:
        """Return the child's answer to one call. Raise EOFError, OSError or ValueError."""
        assert self._process.stdin is not None
        call = json.dumps({"name": name, "arguments": arguments})
        self._process.stdin.write(call.encode() + b"\n")
        await self._process.stdin.drain()
        found = await self._line()
        if len(str(found.get("text", ""))) > MAX_RESULT_CHARS:
            raise ValueError("the result is too long")
        return found

    async def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        found = json.loads(line)
        if not isinstance(found, dict):
            raise ValueError("the line is no object")
        return found

    async def gone(self) -> None:
        """Wait for the end of the process and close its pipes."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._process.wait()

    def kill(self) -> None:
        """Kill the process and those that it has started."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
