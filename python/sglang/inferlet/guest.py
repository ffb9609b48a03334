"""Guest: one program in a sandbox, text in and text out.

    start(source, arguments) -> calls
    turn(answers) -> calls

All of it is JSON but the source, which is the program's text. Bytes are base64 in it. ``wait``, the
one thing that a guest may call, is used by a plain ``def main(ctx)``: it hands out calls and gives
answers inside of a turn.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import io
import json
import linecache
import os
import random
import sys
import time
import types
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from sglang.inferlet.ctx import Ctx
from sglang.inferlet.turns import CallData, Turns, told

FILE = "program.py"  # as tracebacks name the source


class GuestCtx(Ctx):
    """The context of a program in a sandbox, of which a plain ``def main`` may wait."""

    def __init__(self, turns: Turns, facts: dict[str, Any], wait: Callable[[str], str]) -> None:
        super().__init__(turns, facts)
        self._outside = wait

    def wait(self, answer: Awaitable[Any]) -> Any:
        """The value of an awaitable, for a plain ``def main``. All that was begun goes on while it
        waits. Raises CallError where a call was refused."""
        task = asyncio.ensure_future(answer, loop=self._turns)
        calls = self._turns.turn(())
        while not task.done():
            calls = self._turns.turn(json.loads(self._outside(dumped(calls))))
        self._turns.restore(calls)
        return task.result()


class Guest:
    """One program. ``wait`` is the sandbox's import; None where there is none."""

    def __init__(self, wait: Callable[[str], str] | None = None) -> None:
        self._wait = wait or _no_wait
        self._turns = Turns()

    def start(self, source: str, arguments: str) -> str:
        """The calls of the first turn. ``arguments``: the facts that ``Ctx`` is made with."""
        # Every guest begins as the same image, so the seed comes from the random bytes of its run.
        random.seed(int.from_bytes(os.urandom(16), "little"))
        turns = self._turns
        sys.stdout = sys.stderr = _Log(turns)
        time.sleep = _no_sleep  # type: ignore[assignment]
        try:
            main = compiled(source)
            ctx = GuestCtx(turns, json.loads(arguments), self._wait)
            if inspect.iscoroutinefunction(main):
                return dumped(turns.start(lambda: main(ctx)))
            value = main(ctx)
            if value is not None:
                turns.emit("set_return", value=value)
            turns.emit("exit")
            return dumped(turns.turn(()))
        except BaseException as error:
            return self._failed(error)

    def turn(self, answers: str) -> str:
        """The calls of the next turn."""
        try:
            return dumped(self._turns.turn(json.loads(answers)))
        except BaseException as error:
            return self._failed(error)

    def _failed(self, error: BaseException) -> str:
        """End a program by the exception that has left its turn, as that of ``sys.exit``."""
        turns, self._turns = self._turns, Turns()
        turns.emit("exit", error=told(error))
        calls = turns.made()
        try:
            return dumped(calls)
        except (TypeError, ValueError):
            return dumped(calls[-1:])


def compiled(source: str) -> Callable[[Any], Any]:
    """The function ``main`` of a program. Raises what the program raises, ValueError where it has
    no ``main``."""
    module = types.ModuleType("program")
    module.__file__ = FILE
    sys.modules["program"] = module
    linecache.cache[FILE] = (len(source), None, source.splitlines(True), FILE)
    exec(compile(source, FILE, "exec"), module.__dict__)
    main = getattr(module, "main", None)
    if not callable(main):
        raise ValueError("the program has no main; begin it with `async def main(ctx):`")
    return main  # type: ignore[no-any-return]


def dumped(calls: list[CallData]) -> str:
    """Calls as JSON. Raises TypeError or ValueError where a value is not plain data, or a text has
    half a surrogate pair."""
    text = json.dumps(
        calls, default=_plain, separators=(",", ":"), allow_nan=False, ensure_ascii=False
    )
    if not text.isascii():
        text.encode()
    return text


def _plain(value: Any) -> str:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    raise TypeError(f"a call has a {type(value).__name__}; give text, numbers, lists or bytes")


def _no_sleep(seconds: float) -> NoReturn:
    raise RuntimeError("time.sleep would hold the sandbox; use `await asyncio.sleep(seconds)`")


def _no_wait(calls: str) -> NoReturn:
    raise RuntimeError("this sandbox has no wait; begin the program with `async def main(ctx):`")


class _Log(io.TextIOBase):
    """Standard output: each line becomes a call ``log``."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._line = turns, ""

    def write(self, text: str) -> int:
        *lines, self._line = (self._line + text).split("\n")
        for line in lines:
            self._turns.emit("log", message=line)
        return len(text)

    def writable(self) -> bool:
        return True
