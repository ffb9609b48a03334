"""Public interface of the project as one JSON document: names, signatures, flags, routes, errors.

    python -m tools.public_names > FILE
    python -m tools.public_names --against FILE    # what FILE names and the project has no more
    PYTHONPATH=OLD/python python -m tools.public_names > FILE    # of another checkout

`test/data/public_names.json` is such a document, made from the last commit before the packages were
moved; `test/pure/project/test_public_names.py` holds today's project against it. In that commit the
runtime's package was called `srt`. It is `sglang.srt` here, the one path that could change.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

# Modules that the documentation names, and those with upstream's names. The public names of a
# module are the ones given here; "" stands for its `__all__`, None for a package without names.
# Every other module belongs to the inside of the language or of the runtime.
MODULES = {
    "sglang": "",
    "sglang.api": "function gen gen_int gen_string select image video separate_reasoning system"
    " system_begin system_end user user_begin user_end assistant assistant_begin assistant_end"
    " set_default_backend flush_cache get_server_info inspect_history",
    "sglang.bench_offline_throughput": "main",
    "sglang.bench_one_batch": "main",
    "sglang.bench_serving": "main",
    "sglang.chat": "ChatTemplate",
    "sglang.check_env": "main",
    "sglang.compiler": "CompiledProgram load",
    "sglang.errors": "AuthenticationFailed BackendError BadRequest BatchError Cancelled"
    " ConnectionFailed InvalidOutput InvalidVariable NotFound PermissionDenied ProgramError"
    " RateLimited ServerFailed SglangError TimedOut TraceError UnknownVariable Unsupported"
    " UnsupportedHere",
    "sglang.global_config": "",
    "sglang.lang": None,
    "sglang.lang.api": "",
    "sglang.lang.backend": None,
    "sglang.lang.backend.anthropic": "",
    "sglang.lang.backend.base_backend": "",
    "sglang.lang.backend.litellm": "",
    "sglang.lang.backend.openai": "",
    "sglang.lang.backend.runtime_endpoint": "",
    "sglang.lang.chat_template": "",
    "sglang.lang.choices": "",
    "sglang.lang.interpreter": "",
    "sglang.lang.ir": "",
    "sglang.launch_server": "main",
    "sglang.srt.cli": "main",
    "sglang.srt.constrained": "",
    "sglang.srt.constrained.outlines_backend": "",
    "sglang.srt.entrypoints": None,
    "sglang.srt.entrypoints.engine": "",
    "sglang.srt.entrypoints.http_server": "",
    "sglang.srt.hf_transformers_utils": "",
    "sglang.srt.server": "",
    "sglang.srt.server_args": "",
    "sglang.srt.utils": "",
    "sglang.srt.utils.hf_transformers_utils": "",
    "sglang.test": None,
    "sglang.test.doc_patch": "",
    "sglang.test.test_utils": "",
    "sglang.utils": "",
    "sglang.version": "__version__",
}

# Classes whose name is public and whose members are the inside of the language: programs test types
# with them.
NAME_ALONE = frozenset({"sglang.lang.ir", "sglang.lang.interpreter.StreamExecutor"})

# Objects that programs are given and do not make.
GIVEN = frozenset({"CompiledProgram", "ForkGroup", "ProgramState", "SglFunction", "Trace"})

# Members by which the interpreter uses a backend, and by which backends use their clients.
INSIDE_BACKENDS = """
    achoose acommit acomplete astream choose commit complete stream request acall acall_stream call
    call_stream constraints continues enforces lacks messages_only native speculates name address
    api call_timeout calling check_open echoes events key_variable loop_client open_client send
    service token_usage tokens translated
"""

# Modules that need a package which may be missing: read, not imported.
READ = ("sglang.integrations.dspy",)

# Modules of commands, with the arguments that come before the flags.
COMMANDS = {
    "sglang": ("sglang.srt.cli", ()),
    "python -m sglang.launch_server": ("sglang.launch_server", ()),
    "python -m sglang.bench_serving": ("sglang.bench_serving", ()),
    "python -m sglang.bench_offline_throughput": ("sglang.bench_offline_throughput", ()),
    "python -m sglang.bench_one_batch": ("sglang.bench_one_batch", ()),
    "python -m sglang.check_env": ("sglang.check_env", ()),
}

# Modules that have held the table of routes and the OpenAPI document.
ROUTES = ("sglang.srt.web.routes", "sglang.srt.server.routes")
DOCUMENTS = ("sglang.srt.web.openapi.openapi_document", "sglang.srt.server.openapi.document")

# Methods by which Python's syntax reaches an object.
OPERATORS = """
    __call__ __getitem__ __setitem__ __delitem__ __contains__ __iter__ __aiter__ __len__ __add__
    __radd__ __iadd__ __enter__ __exit__ __aenter__ __aexit__ __eq__ __bool__
"""
ALL_OF_SERVE = "all flags of sglang serve"
PLAIN = (type(None), bool, int, float, str)


class Parsed(Exception):
    """Ends a command where it would read its arguments; holds the parser."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        super().__init__(parser.prog)
        self.parser = parser


def load(name: str) -> ModuleType:
    """Import a module; `sglang.srt.X` may be `srt.X` in a checkout from before."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        short = name.removeprefix("sglang.")
        if not name.startswith("sglang.srt.") or not name.startswith(str(error.name)):
            raise
        return importlib.import_module(short)


def first(names: tuple[str, ...]) -> ModuleType:
    """Import the first of these modules that exists."""
    for name in names:
        try:
            return load(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(f"none of {', '.join(names)} exists")


def written(parameter: inspect.Parameter) -> str:
    """A parameter as `name`, `name=default`, `*name` or `**name`; `...` for a default that is no
    literal."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return f"*{parameter.name}"
    if parameter.kind is parameter.VAR_KEYWORD:
        return f"**{parameter.name}"
    if parameter.default is parameter.empty:
        return parameter.name
    return f"{parameter.name}={literal(parameter.default)}"


def literal(value: Any) -> str:
    whole = isinstance(value, (tuple, list)) and all(isinstance(one, PLAIN) for one in value)
    return repr(value) if whole or isinstance(value, PLAIN) else "..."


def signature(value: Callable[..., Any]) -> list[str] | None:
    """Parameters in order, `*` before those that are given by keyword, `/` after those that are
    not; None where Python knows no signature."""
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return None
    found: list[str] = []
    for index, parameter in enumerate(parameters):
        before = parameters[index - 1].kind if index else None
        if before is parameter.POSITIONAL_ONLY is not parameter.kind:
            found.append("/")
        if parameter.kind is parameter.KEYWORD_ONLY and before not in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        ):
            found.append("*")
        found.append(written(parameter))
    return found


def exported(module: str) -> dict[str, Any]:
    """Describe each public name of a module; those that it lacks are left out."""
    names = MODULES[module]
    loaded = load(module)
    if names is None:
        return {}
    found: dict[str, Any] = {}
    for name in names.split() or loaded.__all__:
        if not hasattr(loaded, name):
            continue
        value, alone = getattr(loaded, name), NAME_ALONE & {module, f"{module}.{name}"}
        found[name] = "class" if alone else described(value)
    return found


def described(value: Any) -> Any:
    """Describe what a user may rely on: parameters of a function, members of a class, the type of
    another value."""
    if inspect.isclass(value):
        return members(value)
    return signature(value) if callable(value) else type(value).__name__


def members(cls: type) -> dict[str, Any]:
    """Public attributes of a class by name: parameters of a method, else None. `()` is the
    constructor."""
    found: dict[str, Any] = {}
    if not issubclass(cls, BaseException) and cls.__name__ not in GIVEN:
        found["()"] = signature(cls)
    for name in dir(cls):
        if name.startswith("_") and name not in OPERATORS.split():
            continue
        if any(name in vars(base) for base in cls.__mro__ if ours(base)):
            value = inspect.getattr_static(cls, name)
            value = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
            found[name] = signature(value) if inspect.isfunction(value) else None
    found |= {name: None for name in assigned(cls) if name not in found}
    backend = any(base.__name__ == "Backend" for base in cls.__mro__)
    inside = INSIDE_BACKENDS.split() if backend else ()
    return {name: found[name] for name in sorted(found) if name not in inside}


def ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("sglang", "srt")


def assigned(cls: type) -> Iterator[str]:
    """Public attributes that `__init__` gives an instance, and annotated ones."""
    for base in cls.__mro__:
        if not ours(base):
            continue
        yield from (name for name in inspect.get_annotations(base) if not name.startswith("_"))
        if "__init__" not in vars(base):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(vars(base)["__init__"])))
        except (OSError, TypeError, SyntaxError):
            continue  # generated, as of a dataclass
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
                and not node.attr.startswith("_")
            ):
                yield node.attr


def modules() -> dict[str, Any]:
    """Describe the public names of each public module; those that do not exist are left out."""
    imported = {name: exported(name) for name in MODULES if exists(name)}
    return imported | {name: dict.fromkeys(defined(name)) for name in READ if exists(name)}


def exists(module: str) -> bool:
    try:
        load(module) if module in MODULES else defined(module)
    except ModuleNotFoundError as error:
        spelled = (module, module.removeprefix("sglang."))
        if not any(f"{name}.".startswith(f"{error.name}.") for name in spelled):
            raise  # the module exists; a package that it imports is missing
        return False
    return True


def defined(module: str) -> list[str]:
    """Public classes and functions that the source of a module defines."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(f"no source of {module}")
    body = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    names = [node.name for node in body if isinstance(node, kinds)]
    return [name for name in names if not name.startswith("_")]


def errors(found: Mapping[str, Any]) -> dict[str, list[str]]:
    """Bases of every exception class that a public module names, by its name there."""
    bases = {}
    for module in MODULES:
        for name in found.get(module, ()):
            value = getattr(load(module), name)
            if inspect.isclass(value) and issubclass(value, BaseException):
                bases[f"{module}.{name}"] = [one.__name__ for one in value.__mro__[1:-1]]
    return bases


def parser_of(module: str, arguments: tuple[str, ...]) -> argparse.ArgumentParser:
    """The parser that a command makes. The command ends when it would read its arguments."""

    def stop(parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        raise Parsed(parser)

    with (
        mock.patch.object(argparse.ArgumentParser, "parse_args", stop),
        mock.patch.object(sys, "argv", [module, *arguments]),
        redirect_stdout(StringIO()),
        redirect_stderr(StringIO()),
    ):
        try:
            load(module).main()
        except Parsed as parsed:
            return parsed.parser
    raise RuntimeError(f"{module} has no parser of arguments")


def commands() -> dict[str, Any]:
    """Flags and arguments of every command and subcommand."""
    found = {}
    for name, (module, arguments) in COMMANDS.items():
        parser = parser_of(module, arguments)
        found[name] = flags(parser)
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for each in action.choices:
                    found[f"{name} {each}"] = flags(parser_of(module, (*arguments, each)))
    serve = found["sglang serve"]
    return {name: short(own, serve) if own is not serve else own for name, own in found.items()}


def short(own: dict[str, Any], serve: dict[str, Any]) -> dict[str, Any]:
    """Flags without those that are the same in `sglang serve`, where most are."""
    same = {flag for flag, taken in own.items() if serve.get(flag) == taken}
    if len(same) < len(serve) / 2:
        return own
    kept = {flag: taken for flag, taken in own.items() if flag not in same}
    return {ALL_OF_SERVE: {"without": sorted(serve.keys() - same)}, **kept}


def whole(found: dict[str, Any]) -> dict[str, Any]:
    """Flags of each command again in full."""
    serve = found["sglang serve"]
    return {
        name: {
            flag: taken for flag, taken in serve.items() if flag not in own[ALL_OF_SERVE]["without"]
        }
        | {flag: taken for flag, taken in own.items() if flag != ALL_OF_SERVE}
        if ALL_OF_SERVE in own
        else own
        for name, own in found.items()
    }


def flags(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Describe each spelling of a flag; `name` is the attribute that holds its value."""
    found: dict[str, Any] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found["COMMAND"] = {"choices": sorted(action.choices)}
            continue
        taken: dict[str, Any] = {"name": action.dest}
        if action.nargs is not None:
            taken["nargs"] = action.nargs
        if action.choices is not None:
            taken["choices"] = sorted(map(str, action.choices))
        if action.required:
            taken["required"] = True
        if action.help == argparse.SUPPRESS:
            taken["hidden"] = True
        if literal(action.default) != "..." and action.default != argparse.SUPPRESS:
            taken["default"] = literal(action.default)
        for flag in action.option_strings or [action.dest]:
            found[flag] = taken
    return dict(sorted(found.items()))


def routes() -> dict[str, Any]:
    """Every method and path, with the fields of its JSON request, query and answer."""
    table = first(ROUTES).ROUTES
    told = first(DOCUMENTS).document(table, "sglang", "0", lambda path: False)
    components = told["components"]["schemas"]
    found = {}
    for route in table:
        operation = told["paths"][re.sub(r":\w+}", "}", route.path)][route.method.lower()]
        entry: dict[str, Any] = {}
        if body := operation.get("requestBody"):
            entry["request"] = fields(json_of(body), components)
        if query := [one["name"] for one in operation.get("parameters", ())]:
            entry["parameters"] = sorted(query)
        if answer := json_of(operation["responses"]["200"]):
            entry["answer"] = fields(answer, components)
        found[f"{route.method} {route.path}"] = entry
    return dict(sorted(found.items()))


def json_of(content: Mapping[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = (
        content.get("content", {}).get("application/json", {}).get("schema", {})
    )
    return schema


def fields(schema: Mapping[str, Any], components: Mapping[str, Any]) -> list[str]:
    """Names of the properties of a schema, alternatives and items of lists included."""
    names: set[str] = set()
    pending, seen = [schema], set()
    while pending:
        each = pending.pop()
        names |= set(each.get("properties", ()))
        pending += [one for kind in ("anyOf", "oneOf", "allOf") for one in each.get(kind, ())]
        if isinstance(each.get("items"), dict):
            pending.append(each["items"])
        name = each.get("$ref", "").rpartition("/")[2]
        if name and name not in seen:
            seen.add(name)
            pending.append(components[name])
    return sorted(names)


def interface() -> dict[str, Any]:
    """The whole document."""
    found = modules()
    return {
        "commands": commands(),
        "errors": errors(found),
        "modules": found,
        "routes": routes(),
    }


def lost(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name each thing that users had before and lack now. New things are no loss."""
    return [
        *lost_names(before["modules"], now["modules"]),
        *lost_flags(whole(before["commands"]), whole(now["commands"])),
        *lost_errors(before["errors"], now["errors"]),
        *lost_routes(before["routes"], now["routes"]),
    ]


def lost_names(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for module, names in before.items():
        if module not in now:
            yield f"module {module} is gone"
            continue
        for name, had in names.items():
            if name not in now[module]:
                yield f"{module}.{name} is gone"
            else:
                yield from lost_value(f"{module}.{name}", had, now[module][name])


def lost_value(name: str, had: Any, has: Any) -> Iterator[str]:
    """Losses of one name: parameters of a function, or members of a class."""
    if isinstance(had, dict):
        if not isinstance(has, dict):
            yield f"{name} is no class any more"
            return
        for member, old in had.items():
            if member not in has:
                yield f"{name}.{member} is gone"
            elif old is not None:
                yield from accepts_no_more(f"{name}.{member}", old, has[member])
    elif isinstance(had, list):
        yield from accepts_no_more(name, had, has["()"] if isinstance(has, dict) else has)


class Accepted:
    """Arguments that a list of parameters accepts.

    Attributes:
        order: names that may be given by position.
        defaults: default of each name, None where an argument is required.
    """

    def __init__(self, parameters: list[str]) -> None:
        self.order: list[str] = []
        self.defaults: dict[str, str | None] = {}
        self.more = self.more_keywords = False
        positional = True
        for each in parameters:
            name, given, default = each.partition("=")
            if each.startswith("**"):
                self.more_keywords = True
            elif each.startswith("*"):
                self.more, positional = self.more or each != "*", False
            elif each != "/":
                self.defaults[name] = default if given else None
                self.order += [name] * positional


def accepts_no_more(name: str, had: list[str], has: Any) -> Iterator[str]:
    """Calls of a function that were allowed and are refused, or mean something else."""
    if not isinstance(has, list):
        yield f"{name} cannot be called any more" if has is not None else f"{name} is no function"
        return
    old, new = Accepted(had), Accepted(has)
    for index, parameter in enumerate(old.order):
        if new.order[index : index + 1] != [parameter] and not new.more:
            yield f"{name}: argument {index + 1} was {parameter}"
    for parameter, default in old.defaults.items():
        if parameter not in new.defaults:
            if not new.more_keywords:
                yield f"{name}: parameter {parameter} is gone"
        elif default is not None and new.defaults[parameter] is None:
            yield f"{name}: parameter {parameter} is required; its default was {default}"
        elif "..." not in (default, new.defaults[parameter]) and default not in (
            None,
            new.defaults[parameter],
        ):
            yield f"{name}: default of {parameter} is {new.defaults[parameter]}; it was {default}"
    for parameter in new.defaults.keys() - old.defaults.keys():
        if new.defaults[parameter] is None:
            yield f"{name}: parameter {parameter} is new and required"
    if old.more > new.more or old.more_keywords > new.more_keywords:
        yield f"{name} takes no other arguments any more"


def lost_flags(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for command, flags in before.items():
        if command not in now:
            yield f"command {command} is gone"
            continue
        for flag, had in flags.items():
            has = now[command].get(flag)
            if has is None:
                yield f"{command} {flag} is gone"
                continue
            if gone := set(had.get("choices", ())) - set(
                has.get("choices", had.get("choices", ()))
            ):
                yield f"{command} {flag} takes no {', '.join(sorted(gone))} any more"
            if "choices" in has and "choices" not in had:
                yield f"{command} {flag} took any value"
            for key in ("name", "nargs", "default", "required"):
                if had.get(key) != has.get(key):
                    yield f"{command} {flag}: {key} is {has.get(key)}; it was {had.get(key)}"
            if has.get("hidden", False) > had.get("hidden", False):
                yield f"{command} {flag} is hidden in --help"


def lost_errors(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name, bases in before.items():
        if name not in now:
            yield f"error {name} is gone"
        elif missing := [base for base in bases if base not in now[name]]:
            yield f"error {name} is no {', no '.join(missing)} any more"


def lost_routes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for route, had in before.items():
        if route not in now:
            yield f"route {route} is gone"
            continue
        for kind, names in had.items():
            if missing := set(names) - set(now[route].get(kind, ())):
                yield f"{route}: {kind} has no {', '.join(sorted(missing))}"


def laid_out(value: Any, depth: int = 0) -> str:
    """JSON with sorted keys, a line for each entry of the outer three levels."""
    if depth == 3 or not isinstance(value, dict) or not value:
        return json.dumps(value, sort_keys=True)
    lines = [
        f"{' ' * (depth + 1)}{json.dumps(key)}: {laid_out(value[key], depth + 1)}"
        for key in sorted(value)
    ]
    return "{\n" + ",\n".join(lines) + "\n" + " " * depth + "}"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.public_names", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--against",
        metavar="FILE",
        type=Path,
        help="print what the document FILE has beyond today's",
    )
    options = parser.parse_args()
    if options.against is None:
        print(laid_out(interface()))
        return 0
    found = lost(json.loads(options.against.read_text(encoding="utf-8")), interface())
    print("\n".join(found) or "Nothing is lost.")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
