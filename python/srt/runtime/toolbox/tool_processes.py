"""Toolbox: the child processes that run the operator's tools, and their deadlines.

Only the children import the operator's module. A child runs one call at a time. If a call is late,
or its request has ended, the child is killed with all processes that it has started. Another child
is started when one is needed.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from sglang.srt.config import ToolboxConfig
from sglang.srt.runtime.toolbox.tool_child import MAX_RESULT_CHARS

log = logging.getLogger("sglang.toolbox")

START_SECONDS = 60.0  # most seconds for a child to import the module
LINE_BYTES = 16 << 20  # most bytes of a line; a result has at most 12 bytes a character
SECRETS = ("SGLANG_API_KEY", "SGLANG_ADMIN_API_KEY")  # variables that no child gets


class ToolboxError(Exception):
    """The module of tools cannot be used."""


class ToolResult(NamedTuple):
    """Text for the model. ``failed``: the text is the reason of a failure."""

    text: str
    failed: bool = False


Ran = Callable[[str, float, bool], None]


class Toolbox:
    """The tools of a server.

    Attributes:
        tools: definitions in OpenAI's form, by name.
        max_calls: default number of calls that one request may make.
    """

    def __init__(self, config: ToolboxConfig, ran: Ran = lambda *_: None) -> None:
        """``ran``: called after each call with the tool's name, the seconds, and whether the call
        failed."""
        self.max_calls = config.toolbox_max_calls
        self.tools: Mapping[str, dict[str, Any]] = {}
        self._spec, self._timeout = config.toolbox, config.toolbox_timeout
        self._ran = ran
        self._slots = asyncio.Semaphore(config.toolbox_processes)
        self._idle: list[_Child] = []
        self._children: set[_Child] = set()
        self._reapers: set[asyncio.Future[None]] = set()

    async def start(self) -> None:
        """Start a child and read the tools' definitions. Log a warning if the start took longer
        than a call may take. Raises ToolboxError."""
        begin = time.monotonic()
        child = await self._started()
        self._warn_of_late_starts(time.monotonic() - begin)
        self.tools = child.tools
        if await child.rests(self._disturbed):
            self._idle.append(child)
        else:
            self._end(child)
        log.info("toolbox %s: %s", self._spec, ", ".join(self.tools))

    def _warn_of_late_starts(self, seconds: float) -> None:
        # Only a warning: later starts may be faster, from a warm disk and without a model loading.
        if seconds > self._timeout:
            log.warning(
                "--toolbox %s: its process was ready after %.3g s, later than the %g s of "
                "--toolbox-timeout, which count a start; a call that needs another process may "
                "fail: raise --toolbox-timeout, or import less in the module",
                self._spec, seconds, self._timeout,
            )  # fmt: skip

    async def call(self, name: str, arguments: str) -> ToolResult:
        """Run a tool and return its result, or a text with the reason of its failure.

        ``arguments`` is JSON text. If the call is cancelled, its child is killed.
        """
        begin, result = time.monotonic(), ToolResult("Error: the request has ended.", True)
        try:
            result = await self._call(name, arguments)
        finally:
            self._ran(name, time.monotonic() - begin, result.failed)
        return result

    async def _call(self, name: str, arguments: str) -> ToolResult:
        if not await self._slot():
            return ToolResult("Error: the server's tools are busy; try again later.", True)
        try:
            return await self._in_child(name, arguments)
        finally:
            self._slots.release()

    async def _slot(self) -> bool:
        """Wait for a slot, at most as long as a call may take. Return whether a slot was taken.
        ``wait_for`` is not used: it loses a cancellation that coincides with the slot."""
        taken: asyncio.Future[bool] = asyncio.ensure_future(self._slots.acquire())
        try:
            await asyncio.wait({taken}, timeout=self._timeout)
            if not taken.done():
                taken.cancel()
                await asyncio.wait({taken})
        except asyncio.CancelledError:
            taken.cancel()  # no effect if the slot is taken already; it is then released
            taken.add_done_callback(self._give_back)
            raise
        return not taken.cancelled()

    def _give_back(self, taken: asyncio.Future[bool]) -> None:
        if not taken.cancelled():
            self._slots.release()

    async def _in_child(self, name: str, arguments: str) -> ToolResult:
        held: list[_Child] = []  # the call's child, which is killed unless it can be reused
        try:
            answer = await asyncio.wait_for(self._asked(name, arguments, held), self._timeout)
        except asyncio.TimeoutError:
            text = f"{name} took more than {self._timeout:g} s and was ended"
            if not held:
                text = f"the process of {name} was not ready in {self._timeout:g} s"
                log.error("tool %s: no process was ready in --toolbox-timeout; raise it", name)
        except ToolboxError as error:
            log.error("tool %s: %s", name, error)
            text = "the server cannot run its tools now"
        except (OSError, EOFError, ValueError):
            text = f"the process of {name} has ended without a result"
        else:
            if await held[0].rests(self._disturbed):
                self._idle.append(held.pop())
            return answer
        finally:
            for child in held:
                self._end(child)
        return ToolResult(f"Error: {text}.", True)

    async def _asked(self, name: str, arguments: str, held: list[_Child]) -> ToolResult:
        """Get a child, add it to ``held`` at once, and return its answer to the call."""
        held.append(await self._free())
        return await held[0].ask(name, arguments)

    async def _free(self) -> _Child:
        while self._idle:
            child, usable = self._idle.pop(), False
            try:
                usable = await child.wakes()
            finally:
                if not usable:
                    self._end(child)
            if usable:
                return child
        return await self._started()

    def _disturbed(self, child: _Child) -> None:
        """Kill an idle child that has written to its pipe or has died, with its process group."""
        if child in self._idle:
            self._idle.remove(child)
            self._end(child)

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
        """Kill a child, and forget it when its process has ended."""
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
    """One child process. ``tools``: the definitions that it reported.

    The child answers each call with one line that has the call's number. Other bytes in its pipe,
    such as those of a tool that writes to all open files, could pass for the answer to a later call
    of another client. So the child is killed for them.
    """

    def __init__(self, process: asyncio.subprocess.Process, spec: str) -> None:
        self._process, self._spec = process, spec
        self._group_ended = False
        self._unread: asyncio.Task[bytes] | None = None  # the read of an idle process
        self.tools: dict[str, dict[str, Any]] = {}
        self._exit = asyncio.ensure_future(process.wait())
        self._exit.add_done_callback(lambda _: self.kill())

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

    async def introduced(self) -> None:
        """Read the definitions. Raise ToolboxError if the module cannot be used."""
        try:
            found = await self._line()
        except (EOFError, ValueError):
            raise ToolboxError(f"--toolbox {self._spec}: its process has ended") from None
        if "error" in found:
            raise ToolboxError(f"--toolbox {self._spec}: {found['error']}")
        if not isinstance(found.get("tools"), dict):
            raise ToolboxError(f"--toolbox {self._spec}: its process has written to its pipe")
        self.tools = found["tools"]

    async def ask(self, name: str, arguments: str) -> ToolResult:
        """Return the child's answer to one call. Raise EOFError, OSError or ValueError."""
        assert self._process.stdin is not None
        number = secrets.token_hex(16)  # no tool can guess it
        call = json.dumps({"number": number, "name": name, "arguments": arguments})
        self._process.stdin.write(call.encode() + b"\n")
        await self._process.stdin.drain()
        found = await self._line()
        if found.get("number") != number:
            raise ValueError("the line is no answer to the call")
        text, error = found.get("text"), found.get("error")
        if isinstance(error, str):
            return ToolResult(f"Error: {error}", True)
        if not isinstance(text, str) or len(text) > MAX_RESULT_CHARS:
            raise ValueError("the answer has no text, or one that is too long")
        return ToolResult(text)

    async def rests(self, disturbed: Callable[[_Child], None]) -> bool:
        """Make the child idle; return False if it has unread output or has ended. ``disturbed`` is
        called with the child if it writes or ends while it is idle."""
        assert self._process.stdout is not None
        self._unread = asyncio.ensure_future(self._process.stdout.read(1))
        self._unread.add_done_callback(lambda read: None if read.cancelled() else disturbed(self))
        return await self._quiet()

    async def wakes(self) -> bool:
        """End the idle state before a call. Return False if the child has written or has died."""
        if self._unread is None or not await self._quiet():
            return False
        self._unread.cancel()
        await asyncio.wait({self._unread})
        return self._unread.cancelled()

    async def _quiet(self) -> bool:
        for _ in range(3):  # the event loop polls the pipe, fills the stream, ends the read
            await asyncio.sleep(0)
        assert self._unread is not None
        return self._process.returncode is None and not self._unread.done()

    async def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        try:
            found = json.loads(line)
        except RecursionError as error:
            raise ValueError("the line is nested too deeply") from error
        if not isinstance(found, dict):
            raise ValueError("the line is no object")
        return found

    async def gone(self) -> None:
        """Wait for the end of the process and close its pipes."""
        if self._unread is not None:
            self._unread.cancel()
        if self._process.stdin is not None:
            self._process.stdin.close()
        await self._exit

    def kill(self) -> None:
        """Kill the process and its process group.

        When the process has ended and was reaped, the group is killed once more, unless a new
        process has taken its number. Later calls do nothing, as the number may be reused.
        """
        if self._group_ended:
            return
        with suppress(ProcessLookupError, PermissionError):
            if self._process.returncode is not None:
                self._group_ended = True
                if _exists(self._process.pid):
                    return
            os.killpg(self._process.pid, signal.SIGKILL)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
