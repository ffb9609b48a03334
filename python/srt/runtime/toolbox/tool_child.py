"""Tool child: the process that imports the operator's module and runs one call at a time.

Started as ``python -m sglang.srt.runtime.toolbox.tool_child MODULE[:NAME]``. It writes the tools'
definitions as one line of JSON, then reads a call from each line of its standard input and answers
by a line ``{"number": ..., "text": ...}`` or ``{"number": ..., "error": ...}`` with the number of
the call. What the tools print goes to standard error.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sglang.srt.runtime.toolbox.tool_definitions import definitions_of
from sglang.srt.system.processes import when_orphaned

LIST = "TOOLS"  # default name of the module's list of functions
MAX_RESULT_CHARS = 1 << 16
LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # not encodable in UTF-8; replaced by U+FFFD


def main(argv: Sequence[str]) -> int:
    """Serve calls until the standard input ends. Return the exit code."""
    when_orphaned(int(argv[1]), lambda: os.killpg(0, signal.SIGKILL))
    pipes = _Pipes()
    try:
        functions, where = load(argv[0])
        definitions = definitions_of(functions, where)
    except Exception as error:
        pipes.write({"error": described(error)})
        return 1
    pipes.write({"tools": definitions})
    known = {function.__name__: function for function in functions}
    while line := pipes.read():
        call = json.loads(line)
        found = answer(known[call["name"]], call["arguments"])
        pipes.write({"number": call["number"], **found})
    return 0


class _Pipes:
    """The pipes to the server. A process that a tool forks loses the pipes, and exits when it would
    use them: otherwise the forked process, too, would return from the tool and answer the call.

    For tools, standard input is empty, and standard output goes to standard error.
    """

    def __init__(self) -> None:
        self._process = os.getpid()
        self._calls = os.fdopen(os.dup(0), encoding="utf-8")
        self._answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        sys.stdin = os.fdopen(0, closefd=False)
        os.register_at_fork(after_in_child=self._forked)

    def read(self) -> str:
        """Return the next call's line, "" at the end of the input."""
        self._end_of_a_fork()
        return self._calls.readline()

    def write(self, value: dict[str, Any]) -> None:
        """Write a line of JSON."""
        self._end_of_a_fork()
        self._answers.write(json.dumps(value) + "\n")
        self._answers.flush()

    def _forked(self) -> None:
        nothing = os.open(os.devnull, os.O_RDWR)
        for pipe in (self._calls, self._answers):
            os.dup2(nothing, pipe.fileno(), inheritable=False)
        os.close(nothing)

    def _end_of_a_fork(self) -> None:
        if os.getpid() != self._process:
            os._exit(0)


def load(spec: str) -> tuple[Any, str]:
    """Return the list of functions that ``MODULE[:NAME]`` names, and its name for errors.

    MODULE is a module's name, or the path of a file that ends with ``.py``.
    """
    name, _, attribute = spec.rpartition(":") if ":" in spec else (spec, "", LIST)
    if name.endswith(".py"):
        path = Path(name).resolve()
        made = importlib.util.spec_from_file_location(path.stem, path)
        if made is None or made.loader is None:
            raise ValueError(f"{name} is no Python file")
        module = importlib.util.module_from_spec(made)
        sys.modules[path.stem] = module
        made.loader.exec_module(module)
    else:
        module = importlib.import_module(name)
    return getattr(module, attribute), f"{attribute} of {name}"


def answer(function: Callable[..., Any], arguments: str) -> dict[str, str]:
    """Call a tool with JSON arguments. Return ``{"text": result}`` or ``{"error": reason}``."""
    kind, text = _answer(function, arguments)
    if kind == "error":
        text = text[:MAX_RESULT_CHARS]
    elif len(text) > MAX_RESULT_CHARS:
        kind, text = "error", f"the result has {len(text)} characters; at most {MAX_RESULT_CHARS}"
    return {kind: LONE_SURROGATE.sub("\ufffd", text)}


def _answer(function: Callable[..., Any], arguments: str) -> tuple[str, str]:
    try:
        values = json.loads(arguments or "{}")
        if not isinstance(values, dict):
            return "error", f"the arguments are {arguments:.80}; they must be a JSON object"
        inspect.signature(function).bind(**values)
    except (ValueError, TypeError, RecursionError) as error:
        return "error", f"the arguments do not fit: {error}"
    try:
        value = function(**values)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
    except Exception as error:
        return "error", described(error)
    try:
        return "text", value if isinstance(value, str) else _json(value)
    except Exception as error:
        return "error", f"the result cannot become JSON: {described(error)}"


def described(error: Exception) -> str:
    """Return type and message of an exception; only the type if ``str(error)`` raises."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def _json(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, allow_nan=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
