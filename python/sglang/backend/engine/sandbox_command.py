"""``sglang inferlet put|list|launch|logs|kill``: the inferlets of a running server; ``runner`` and
``build``: what programs are built with."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from sglang.backend.engine.inferlet_client import InferletClient
from sglang.backend.engine.module_build import BuildFailed, build_module, missing, unbuilt
from sglang.errors import BackendError
from sglang.srt.commands.admin_call import read_keys
from sglang.srt.commands.named_values import named_values
from sglang.srt.config.command_line import Parser

ACTIONS = {
    "put": "upload a program; prints its id",
    "list": "show the programs and runs of the key",
    "launch": "run a program, and print its events until it ends",
    "logs": "print the events of a run until it ends",
    "kill": "end a run, and forget it",
    "runner": "build the runners of programs in Python and JavaScript, where they are missing",
    "build": "compile a source file to a core module",
}
TARGETS = {
    "put": "a file in Python (.py) or JavaScript (.js), a module or a component",
    "launch": "id of the program",
    "logs": "id of the run",
    "kill": "id of the run",
    "build": "a file in C (.c), Rust (.rs), AssemblyScript (.ts; TypeScript for the runner of "
    "JavaScript is compiled to .js, by tsc) or WAT (.wat)",
}


class ActionFailed(Exception):
    """The action cannot be done. The text says why."""


class ActionParser(Parser):
    """Parses the flags of one action. An action whose ``arguments`` have a default leaves what is
    behind ``--`` to its program, unread."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        words = list(args or ())
        if self.get_default("arguments") is None:
            return super().parse_known_args(words, namespace)
        cut = words.index("--") if "--" in words else len(words)
        found, unknown = super().parse_known_args(words[:cut], namespace)
        if unknown and not unknown[0].startswith("-"):
            self.error(f"{unknown[0]}: flags of the program come after --")
        found.arguments = words[cut + 1 :]
        return found, unknown


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    """The actions, each with its flags."""
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="ACTION", parser_class=ActionParser
    )
    added = {name: actions.add_parser(name, help=text) for name, text in ACTIONS.items()}
    for name in ("put", "list", "launch", "logs", "kill"):
        added[name].add_argument(
            "--url", default="http://127.0.0.1:30000", help="the server (default: %(default)s)"
        )
        added[name].add_argument(
            "--api-key", dest="admin_api_key", help="the key (default: SGLANG_API_KEY)"
        )
        added[name].add_argument(
            "--insecure", action="store_true", help="do not verify the server's certificate"
        )
    added["launch"].add_argument(
        "--limit", action="append", default=[], metavar="NAME=VALUE",
        help="a field of the run, such as turn_cpu=0.5 or store=true; may be given again",
    )  # fmt: skip
    added["logs"].add_argument(
        "--after", type=int, default=-1, metavar="NUMBER", help="events after this one"
    )
    added["build"].add_argument("--output", default="", metavar="FILE", help="the file to write")
    for name, text in TARGETS.items():
        added[name].add_argument("target", help=text)
    added["launch"].epilog = "Arguments after -- go to the program: ID --limit wall=9 -- ARGUMENTS"
    added["launch"].set_defaults(arguments=[])


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """The exit code: 1 where the action, or the run, fails."""
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "put": put, "list": show, "launch": launch, "logs": logs, "kill": kill,
        "runner": runner, "build": build,
    }  # fmt: skip
    try:
        if arguments.action not in ("runner", "build"):
            read_keys(arguments)
        return actions[arguments.action](arguments)
    except (BackendError, OSError, ValueError, RuntimeError, ActionFailed, BuildFailed) as error:
        print(f"sglang inferlet {arguments.action}: {error}", file=sys.stderr)
        return 1


def put(arguments: argparse.Namespace) -> int:
    """Upload a file; its id. One in Python or JavaScript goes as its text."""
    if told := unbuilt(arguments.target):
        raise ActionFailed(told)
    print(_client(arguments).put(Path(arguments.target)))
    return 0


def show(arguments: argparse.Namespace) -> int:
    """Print the programs and runs of this key."""
    client = _client(arguments)
    for program in client.programs():
        print(f"{program['id']}  {program['kind']:9}  {program['bytes']:>9}  {program['name']}")
    for one in client.runs():
        print(f"{one['id']}  {one['status']:9}  {one['events']:>9}  {one['inferlet'][:12]}")
    return 0


def launch(arguments: argparse.Namespace) -> int:
    """Run a program, and print its events until it ends."""
    client, fields = _client(arguments), named_values("--limit", arguments.limit)
    run = client.launch(arguments.target, *arguments.arguments, **fields)
    print(run, file=sys.stderr)
    return _print(client.events(run))


def logs(arguments: argparse.Namespace) -> int:
    """Print the events of a run until it ends."""
    return _print(_client(arguments).events(arguments.target, arguments.after))


def kill(arguments: argparse.Namespace) -> int:
    """End a run, and forget it."""
    _client(arguments).kill(arguments.target)
    return 0


def runner(arguments: argparse.Namespace) -> int:
    """Build the runners that are missing; their files. 1 where that of Python cannot be built."""
    if importlib.util.find_spec("wasmtime") is None:
        raise ActionFailed(missing("wasmtime", "pip install wasmtime componentize-py"))
    from sglang.srt.inferlet.host.javascript_build import JAVASCRIPT
    from sglang.srt.inferlet.host.runner_build import PYTHON, ToolchainMissing, runner

    failed = []
    for language, recipe in (("Python", PYTHON), ("JavaScript", JAVASCRIPT)):
        try:
            print(runner(recipe=recipe), flush=True)
        except (ToolchainMissing, RuntimeError) as error:
            print(f"no runner of {language}: {error}", file=sys.stderr)
            failed.append(language)
    return int("Python" in failed)


def build(arguments: argparse.Namespace) -> int:
    """Compile a source file to a core module; its file."""
    source = Path(arguments.target)
    target = Path(arguments.output or source.with_suffix(".wasm"))
    build_module(source, target)
    print(target)
    return 0


def _client(arguments: argparse.Namespace) -> InferletClient:
    """The server that the flags name. Raises ValueError."""
    verify = not arguments.insecure
    return InferletClient(arguments.url, arguments.admin_api_key, verify=verify)


def _print(events: Iterable[dict[str, Any]]) -> int:
    """Print what a run sends; the exit code."""
    code = 0
    for event in events:
        kind = event["type"]
        if kind == "message":
            print(event["text"], flush=True)
        elif kind == "blob":
            print(event["data"], flush=True)
        elif kind == "log":
            print(event["text"], file=sys.stderr, flush=True)
        elif kind == "result" and event["value"] is not None:
            value = event["value"]
            print(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        elif kind == "error":
            print(event["message"].rstrip(), file=sys.stderr)
            code = 1
    return code
