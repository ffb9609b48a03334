"""Program file: ``FILE.py:NAME`` or ``MODULE:NAME``, imported, and its NAME=VALUE arguments."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from sglang.errors import ProgramError
from sglang.ir.source_location import Location
from sglang.program import SglFunction
from sglang.srt.commands.named_values import named_values
from sglang.srt.core.nearest import nearest
from sglang.terminal.bounded_file import read_bounded_text

MAX_FILE_BYTES = 64 << 20  # for an argument that is read from a file


class ProgramFileError(ValueError):
    """The program cannot be found, or its arguments do not fit. The text says why."""


def load_program(target: str) -> SglFunction:
    """The program that ``FILE.py:NAME`` or ``MODULE:NAME`` names; ``NAME`` may be left out where
    the file has one program. Raises ProgramFileError."""
    home, colon, name = target.rpartition(":")
    if not colon or os.sep in name or name.endswith(".py"):  # a drive letter is no separator
        home, name = target, ""
    members = vars(_import(home))
    programs = {
        key: value
        for key, value in members.items()
        if isinstance(value, SglFunction) and not key.startswith("_")
    }
    if not name and len(programs) == 1:
        return next(iter(programs.values()))
    if name in members and isinstance(members[name], SglFunction):
        found: SglFunction = members[name]
        return found
    known = f"; it has {', '.join(programs)}" if programs else "; it has none"
    if not name:
        raise ProgramFileError(f"{home} has {len(programs)} programs: write {home}:NAME{known}")
    if name in members:
        raise ProgramFileError(
            f"{name} of {home} is {members[name]!r:.60}, no program: put @sglang.function before it"
        )
    near = nearest(name, programs)
    raise ProgramFileError(
        f"{home} has no program {name!r}" + (f"; did you mean {near}?" if near else known)
    )


def _import(home: str) -> Any:
    """The module; a file's own directory is on the path, as ``python FILE`` has it."""
    if not home:
        raise ProgramFileError("the program has no file; write FILE.py:NAME")
    path = Path(home)
    if home.endswith(".py") or path.exists():
        if not path.is_file():
            raise ProgramFileError(f"there is no file {home!r}")
        sys.path.insert(0, str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise ProgramFileError(f"{home} is no Python file; its name must end with .py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module  # dataclasses and pydantic look their module up
        _run(home, partial(spec.loader.exec_module, module))
        return module
    sys.path.insert(0, str(Path.cwd()))
    return _run(home, partial(importlib.import_module, home))


def _run(home: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except ModuleNotFoundError as error:
        if error.name == home.split(".")[0]:
            raise ProgramFileError(f"there is no file and no module {home!r}") from error
        raise ProgramFileError(f"{home} needs a package that is missing: {error}") from error
    except Exception as error:
        raise ProgramFileError(f"{home} cannot be imported:\n{traceback.format_exc()}") from error


def program_arguments(program: SglFunction, pairs: Sequence[str]) -> dict[str, Any]:
    """Arguments of NAME=VALUE words. Raises ValueError."""
    texts = dict(pair.partition("=")[::2] for pair in pairs)
    return fitting(program, named_values("argument", pairs), texts)


def failure_of(program: SglFunction, error: BaseException) -> ProgramError | None:
    """The error that names class and line of what the program's own code raised. None where no
    line of the program's file raised it."""
    if isinstance(error, ProgramError):
        return error
    file = program.func.__code__.co_filename
    lines = [
        one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == file
    ]
    if not lines:
        return None
    said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return ProgramError(said, Location(file, lines[-1] or 0))


def fitting(
    program: SglFunction, given: Mapping[str, Any], texts: Mapping[str, str]
) -> dict[str, Any]:
    """The arguments for a program: ``given`` by name, as data; ``texts`` as they were written, for
    parameters that are annotated ``str``. ``@FILE`` is the text of a file, ``@@...`` a text that
    begins with @. Raises ProgramFileError."""
    signature = inspect.signature(program.func)
    parameters = dict(list(signature.parameters.items())[1:])  # after s
    any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    usage = f"{program.func.__name__}{signature}".replace("(s, ", "(").replace("(s)", "()")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in parameters and not any_name:
            near = nearest(name, parameters)
            hint = f"did you mean {near}?" if near else f"it is {usage}"
            raise ProgramFileError(f"{program.func.__name__} has no argument {name!r}; {hint}")
        wants_text = name in parameters and parameters[name].annotation in (str, "str")
        found[name] = _read(name, texts[name] if wants_text else value)
    missing = [
        name
        for name, p in parameters.items()
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and name not in {**found, **program.bound}
    ]
    if missing:
        more = " ".join(f"{name}=VALUE" for name in missing)
        raise ProgramFileError(f"{usage} needs {', '.join(missing)}; add {more}")
    return found


def _read(name: str, value: Any) -> Any:
    """A value, or the text of the file that it names."""
    if not isinstance(value, str) or not value.startswith("@"):
        return value
    if value.startswith("@@"):
        return value[1:]
    try:
        return read_bounded_text(value[1:], MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        raise ProgramFileError(
            f"{name}={value} cannot be read: {error}; write @@ for a text that begins with @"
        ) from error
