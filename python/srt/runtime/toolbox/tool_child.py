"""Tool child: the process that imports the operator's module and runs one call at a time.

Started as ``python -m sglang.srt.runtime.toolbox.tool_child MODULE[:NAME]``. It writes the tools'
definitions as one line of JSON, then reads a call from each line of its standard input and answers
by a line ``{"text": ...}`` or ``{"error": ...}``. What the tools print goes to standard error.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from sglang.srt.core.processes import when_orphaned
from sglang.srt.runtime.toolbox.tool_definitions import definitions_of

LIST = "TOOLS"  # the list of a module whose name is given alone
MAX_RESULT_CHARS = 1 << 16


def main(argv: Sequence[str]) -> int:
    """Serve calls until the standard input ends; the exit code."""
    when_orphaned(int(argv[1]), lambda: os.killpg(0, signal.SIGKILL))
    calls, answers = _pipes()
    try:
        functions, where = load(argv[0])
        definitions = definitions_of(functions, where)
    except Exception as error:
        _write(answers, {"error": f"{type(error).__name__}: {error}"})
        return 1
    _write(answers, {"tools": definitions})
    known = {function.__name__: function for function in functions}
    for line in calls:
        call = json.loads(line)
        _write(answers, answer(known[call["name"]], call["arguments"]))
    return 0


def _pipes() -> tuple[IO[str], IO[str]]:
    """Return the pipes to the server. Tools that read find nothing, and print to standard error."""
    calls = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    sys.stdin = os.fdopen(0, closefd=False)
    return calls, answers


def _write(answers: IO[str], value: dict[str, Any]) -> None:
    answers.write(json.dumps(value) + "\n")
    answers.flush()


def load(spec: str) -> tuple[Any, str]:
    """Return the list of functions that ``MODULE[:NAME]`` stands for, and what to call it.

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
    """Return what a call gives: its text, or what went wrong."""
    try:
        values = json.loads(arguments or "{}")
        if not isinstance(values, dict):
            return {"error": f"the arguments are {arguments:.80}; they must be a JSON object"}
        inspect.signature(function).bind(**values)
    except (ValueError, TypeError) as error:
        return {"error": f"the arguments do not fit: {error}"}
    try:
        value = function(**values)
        if inspect.iscoroutine(value):
            value = asyncio.run(value)
        text = value if isinstance(value, str) else _json(value)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:MAX_RESULT_CHARS]}
    if len(text) > MAX_RESULT_CHARS:
        return {"error": f"the result has {len(text)} characters; at most {MAX_RESULT_CHARS}"}
    return {"text": text}


def _json(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
