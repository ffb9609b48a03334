"""``sglang run FILE.py:NAME NAME=VALUE ...``: run one program and print what it made."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from sglang.errors import SglangError, UnknownVariable
from sglang.ir.params import ALIASES, NAMES
from sglang.program import SglFunction
from sglang.srt.commands.named_values import named_values
from sglang.srt.core.nearest import nearest
from sglang.state import ProgramState
from sglang.terminal.chosen_backend import add_backend_arguments, open_backend
from sglang.terminal.program_file import (
    ProgramFileError,
    failure_of,
    load_program,
    program_arguments,
)

EPILOG = """
An argument whose parameter is annotated str is taken as it is written; others are JSON where they
can be. @@ begins a text that begins with @.

  sglang run qa.py:answer question="Where does Mara live?"
  sglang run qa.py:answer question=@question.txt --stream --param temperature=0
  sglang run qa.py:answer question=... --url http://10.0.0.7:30000 --on server --json
  sglang run qa.py:answer question=... --backend openai --model gpt-4o --trace run.html
"""


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``sglang run``."""
    parser.add_argument(
        "program", metavar="FILE.py:NAME",
        help="a function under @sglang.function; NAME may be left out where the file has one",
    )  # fmt: skip
    parser.add_argument(
        "values", metavar="NAME=VALUE", nargs="*",
        help="arguments: JSON, or else a text; @FILE is the text of a file",
    )  # fmt: skip
    parser.add_argument("--stream", action="store_true", help="print the text as it is generated")
    parser.add_argument(
        "--json", action="store_true", help="print the variables as one JSON object, and no text"
    )
    parser.add_argument("--var", default="", metavar="NAME", help="print only this variable")
    parser.add_argument(
        "--param", action="append", default=[], metavar="NAME=VALUE",
        help="a default of every gen, such as temperature=0 or max_tokens=64; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--on", choices=("client", "server"), default="client",
        help="server: send the whole program to the server, which runs it (default: client)",
    )  # fmt: skip
    parser.add_argument(
        "--trace", metavar="FILE", help="record the run: .html, .json or .chrome.json"
    )
    parser.add_argument(
        "--record", metavar="FILE", help="write every call and its answer to this file, from "
        "which sglang.Replay answers",
    )  # fmt: skip
    parser.add_argument(
        "--bundle", metavar="FILE", help="where the program fails: write its source, arguments, "
        "settings and versions to this file; 'sglang replay' runs it again",
    )  # fmt: skip
    add_backend_arguments(parser)
    parser.epilog = EPILOG


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """The exit code: 1 where the program fails or cannot be started."""
    try:
        verify(arguments)
        program = load_program(arguments.program)
        values = program_arguments(program, arguments.values)
        params = named_values("--param", arguments.param)
        backend = recorded(open_backend(arguments), arguments.record)
        try:
            tell(_run(program, values, params, backend, arguments), arguments)
        except Exception as error:
            failure = failure_of(program, error)
            if arguments.bundle and (failure or isinstance(error, SglangError)):
                write_bundle(arguments, values, params, failure or error)
            if failure is None:
                raise
            raise failure from error
        finally:
            backend.shutdown()
    except BrokenPipeError:  # standard output is closed; sglang.srt.cli ends the command
        raise
    except (OSError, ValueError, TypeError, SglangError) as error:
        sys.stdout.flush()
        print(f"sglang run: {error}", file=sys.stderr)
        return 1
    return 0


def verify(arguments: argparse.Namespace) -> None:
    """Raise ValueError for flags that exclude each other."""
    if arguments.json and (arguments.stream or arguments.var):
        raise ValueError("--json prints variables at the end; leave out --stream and --var")
    if arguments.on == "server" and not (arguments.url or arguments.backend in (None, "engine")):
        raise ValueError("--on server needs a runtime of this project: give --url, or no --backend")
    if arguments.on == "server" and arguments.record:
        raise ValueError("--record writes the calls of this process, and --on server makes none")


def recorded(backend: Any, path: str | None) -> Any:
    """The backend, with its calls written to ``path`` where there is one."""
    if not path:
        return backend
    from sglang.backend.record.call_recorder import Recorder

    return Recorder(backend, path)


def _run(
    program: SglFunction,
    values: dict[str, Any],
    params: dict[str, Any],
    backend: Any,
    arguments: argparse.Namespace,
) -> ProgramState:
    verify_parameters(program, params)
    bound = program.bind(**values)
    on = "server" if arguments.on == "server" else None
    streams = arguments.stream
    options = {"backend": backend, "trace": arguments.trace, "on": on, **params}
    if not program.is_async:
        return bound.run(stream=streams, **options)
    if streams:
        raise ProgramFileError("--stream is for a plain def; this program is an async def")
    import asyncio

    return asyncio.run(bound.arun(**options))


def verify_parameters(program: SglFunction, params: dict[str, Any]) -> None:
    """Raise ProgramFileError for a name of --param that is no parameter of every gen."""
    known = {*NAMES, *ALIASES}
    for name in params:
        if name in program.arg_names:
            raise ProgramFileError(
                f"--param {name} is also an argument of {program.func.__name__}; give it "
                "without --param"
            )
        if name not in known:
            near = nearest(name, sorted(known))
            hint = f"did you mean {near}?" if near else "such as temperature or max_tokens"
            raise ProgramFileError(f"--param {name} is no parameter of gen; {hint}")


def tell(state: ProgramState, arguments: argparse.Namespace) -> None:
    """Print what the flags say of a state; a streamed one as it grows."""
    if arguments.json:
        print(json.dumps(variables(state), indent=2, ensure_ascii=False, default=repr))
        return
    try:
        if arguments.stream:
            for piece in state.text_iter(arguments.var or None):
                print(piece, end="", flush=True)
            print()
            return
        found = state[arguments.var] if arguments.var else state.text()
    except UnknownVariable:
        print(state.text(), file=sys.stderr)  # standard output is the variable's alone
        raise
    print(found if isinstance(found, str) else json.dumps(found, ensure_ascii=False, default=repr))


def variables(state: ProgramState) -> dict[str, Any]:
    """The variables of a program that has ended, and its result as ``return`` where it has one."""
    state.text()  # waits, and raises
    found = dict(state)
    if state.ret_value is not None:
        found["return"] = state.ret_value
    return found


def write_bundle(
    arguments: argparse.Namespace,
    values: dict[str, Any],
    params: dict[str, Any],
    error: Exception,
) -> None:
    """Write what reproduces a failed run, and say so. Raises OSError and ValueError."""
    from sglang.terminal.chaos.chaos_work import ProgramWork
    from sglang.terminal.chaos.crash_bundle import CrashBundle

    settings = named_values("--setting", arguments.setting)
    if arguments.model and not arguments.url:
        settings["model_path"] = arguments.model
    failure = {"piece": 0, "way": "failed", "error": f"{type(error).__name__}: {error}",
               "expected": "", "found": ""}  # fmt: skip
    work = ProgramWork(arguments.program, values, params).data()
    CrashBundle(work=work, settings=settings, failures=[failure]).save(arguments.bundle)
    print(f"{arguments.bundle} holds the failure; again: sglang replay {arguments.bundle}",
          file=sys.stderr)  # fmt: skip
