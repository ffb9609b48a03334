"""``sglang inferlet run``: run an inferlet on a model in this process."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import traceback
from collections.abc import Sequence
from typing import Any

from sglang.backend.engine.module_build import unbuilt
from sglang.errors import SglangError

POLICIES = ("eager", "k", "t", "adaptive", "cohort")


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags, which stand before the file. What follows it belongs to the program; a ``--``
    before that may be left out."""
    parser.add_argument("action", choices=("run",), help="run: until the program ends")
    parser.add_argument("file", help="Python file with `async def main(ctx)`")
    parser.add_argument(
        "--model-path", default="", help="model of the engine; default: the embedded one"
    )
    parser.add_argument(
        "--setting", action="append", default=[], metavar="NAME=VALUE",
        help="a setting of sglang.Engine, such as max_total_tokens=8192; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--policy", choices=POLICIES, default="cohort", help="when calls are sent to the engine"
    )
    parser.add_argument(
        "--allow-host", action="append", default=[], metavar="HOST",
        help="a host that the program may reach by HTTP, * for any public one; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--allow-local", action="append", default=[], metavar="HOST:PORT",
        help="a non-public address that the program may reach too; may be given again",
    )  # fmt: skip
    rest = parser.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="arguments of the program"
    )
    rest.required = False


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Run the subcommand; the exit code."""
    words = arguments.arguments
    words = words[1:] if words[:1] == ["--"] else words
    return run_local(arguments.file, words, arguments)


def run_local(file: str, words: Sequence[str], flags: argparse.Namespace) -> int:
    """Run a file with these arguments; the exit code, 1 where the program fails or cannot be
    started. ``flags``: those of ``add_parser_arguments``."""
    from sglang.backend.engine.embedded import Engine
    from sglang.backend.engine.inferlets import InferletError
    from sglang.srt.commands.named_values import named_values

    try:
        main = _main(file)
        settings = named_values("--setting", flags.setting)
        if flags.model_path:
            settings["model_path"] = flags.model_path
        with Engine(**settings) as engine:
            value = _result(engine, main, words, flags)
    except InferletError as error:
        print(error, file=sys.stderr)
        return 1
    except (OSError, ValueError, TypeError, SglangError) as error:
        print(f"sglang inferlet: {error}", file=sys.stderr)
        return 1
    if value is not None:
        print(value if isinstance(value, str) else json.dumps(value, default=repr))
    return 0


def _result(engine: Any, main: Any, words: Sequence[str], flags: argparse.Namespace) -> Any:
    from sglang.srt.inferlet.program_limits import Rights

    rights = Rights(
        store=True,
        topics=True,
        hosts=tuple(flags.allow_host),
        local=tuple(flags.allow_local),
    )
    program = engine.inferlet(main, *words, rights=rights, policy=flags.policy)
    shown = 0
    try:
        while True:
            message = program.receive(shown)
            shown += 1
            print(message if isinstance(message, str) else message.hex(), flush=True)
    except IndexError:  # the program has ended, and all its messages are shown
        return program.result()
    finally:
        for line in program.lines:
            print(line, file=sys.stderr)


def _main(path: str) -> Any:
    """``main`` of a file. Raises ValueError, OSError."""
    if path.endswith(".js"):
        raise ValueError(
            f"{path} is JavaScript, which runs in a server's sandbox alone: sglang inferlet put"
        )
    if told := unbuilt(path):
        raise ValueError(f"{told}; its module runs in a server's sandbox alone")
    try:
        found = runpy.run_path(path)
    except Exception as error:
        if isinstance(error, OSError):
            raise
        raise ValueError(f"{path} cannot be imported:\n{traceback.format_exc()}") from error
    if "main" not in found:
        raise ValueError(f"{path} has no main; an inferlet is `async def main(ctx)`")
    return found["main"]
