"""The command ``sglang``."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module

# Names that other programs, or pages of them, have for commands here.
MEANT = {
    "launch": "serve", "launch_server": "serve", "start": "serve", "server": "serve", "up": "serve",
    "stop": "drain", "status": "ps", "list": "ps", "ls": "ps", "top": "ps", "download": "pull",
    "fetch": "pull", "benchmark": "bench", "complete": "chat", "generate": "run", "exec": "run",
    "check_env": "doctor", "check-env": "doctor", "version": "--version", "help": "--help",
}  # fmt: skip

# Module, one line of help and a description. A module is imported when its command is run.
COMMANDS = {
    "serve": (
        "sglang.srt.web.launch",
        "serve a model over HTTP",
        "Serve a model over HTTP: OpenAI's and Anthropic's routes under /v1, and /generate. "
        "MODEL is a directory, a GGUF file or a hub id; without it the embedded model is served.",
    ),
    "chat": (
        "sglang.terminal.chat_command",  # the language's; nothing else here knows of it
        "talk with a model in the terminal",
        "Talk with a model: of a running server (--url), or one that is served for this chat "
        "alone. Answers appear as they are generated, and the chat remembers its turns.",
    ),
    "run": (
        "sglang.terminal.run_command",  # the language's, as "chat" is
        "run a program of the language from its file",
        "Run one function under @sglang.function with NAME=VALUE arguments and print its text: on "
        "a model in this process, on a server (--url) or on a service (--backend).",
    ),
    "ps": (
        "sglang.srt.commands.ps_command",
        "list the servers that run on this machine",
        "List the servers that run on this machine: model, address, requests, and the share of the "
        "KV cache that they hold.",
    ),
    "pull": (
        "sglang.srt.commands.pull_command",
        "fetch a model of the hub into the local cache",
        "Fetch a model of the hub into the local cache, so that 'serve' needs no network. --list "
        "shows what is there.",
    ),
    "bench": (
        "sglang.terminal.bench_command",  # the language's, as "chat" is
        "measure a server or an engine",
        "Measure a running server under load, or an engine of its own.",
    ),
    "chaos": (
        "sglang.terminal.chaos.chaos_command",  # the language's, as "chat" is
        "run work while engines are killed and connections cut; report losses",
        "Run a program, or requests, repeatedly while engines are killed and stopped, connections "
        "cut and memory filled. Compare every answer with that of a run without faults. The seed "
        "determines the faults and their times.",
    ),
    "replay": (
        "sglang.terminal.chaos.replay_command",  # the language's, as "chat" is
        "repeat the work that a bundle of 'chaos' or 'run' recorded",
        "Repeat the work that a bundle recorded, on a server with the same settings and faults, "
        "and report what fails this time.",
    ),
    "engine": (
        "sglang.srt.commands.engine_command",
        "run an engine by itself, for servers on this or other machines",
        "Load a model and serve its engine over TCP to one or several servers, here or on other "
        "machines. If other machines can reach it, protect it with 'sglang engine-keys'.",
    ),
    "engine-keys": (
        "sglang.srt.commands.engine_keys_command",
        "make the keys of an engine and of the servers that use it",
        "Write engine.key and front.key, readable only by their owner, into a directory. An "
        "engine with engine.key accepts only servers with front.key.",
    ),
    "doctor": (
        "sglang.srt.commands.doctor.doctor_command",
        "check whether a server would start here, or whether a running one answers",
        "Check the machine, the installation and the model, with the flags of 'serve'; or check "
        "the server at --url. Exit code 1 if a check fails.",
    ),
    "schema": (
        "sglang.srt.commands.schema_command",
        "show how a JSON schema or another constraint is enforced",
        "Examine a constraint: every keyword of a JSON schema, enforced or refused, "
        "the path taken, a sample, and an instance that is refused. Exit code 1 if it is refused.",
    ),
    "drain": (
        "sglang.srt.commands.drain_command",
        "stop a server from taking requests; open ones finish",
        "Stop a running server from taking requests; open ones may take its --drain-timeout. The "
        "server keeps answering probes until SIGTERM. Exit code 1 if requests outlast the timeout.",
    ),
    "workers": (
        "sglang.srt.commands.workers_command",
        "show, add or remove engines of a server",
        "Show the engines of a running server. --add sends requests to a separate engine "
        "('engine') too; --remove lets an engine finish, and moves requests after --seconds.",
    ),
    "explain": (
        "sglang.srt.commands.explain_command",
        "explain why a prompt was, or was not, in a server's cache",
        "Ask a running server how much of a request's prompt came from its cache, "
        "where the prompt left the nearest cached text, and why the rest was not there.",
    ),
    "trace": (
        "sglang.views.timeline.command",  # the language's, as "chat" is
        "show the calls of programs, with their times and costs",
        "Render a recorded trace of programs as a page, or run a Python script and record every "
        "program in it. Options come before the file; arguments after a script are the script's.",
    ),
    "inferlet": (
        "sglang.backend.engine.inferlet_command",  # the language's, as "chat" is
        "run a program that manages its own KV pages and sampling",
        "Run a Python file with `async def main(ctx)`: a program that manages KV pages, forward "
        "passes and sampling itself. Its messages and result are printed; exit code 1 if it fails. "
        "Options come before the file, the program's arguments after it. 'put', 'list', 'launch', "
        "'logs' and 'kill' manage programs on a server with --enable-inferlets; 'runner' and "
        "'build' build what such programs need.",
    ),
    "models": (
        "sglang.srt.commands.models_command",
        "list the architectures that are served, and what the tests verify of each",
        "List the architectures that are served, and what the tests verify of each. Exit code 1 "
        "where none has the name asked for.",
    ),
}
# Actions of a command that are another module's.
ELSEWHERE: dict[tuple[str, ...], str] = {
    ("inferlet", action): "sglang.backend.engine.sandbox_command"
    for action in ("put", "list", "launch", "logs", "kill", "runner", "build")
}

# Errors of a write to standard output: the reader is gone, or the disk is full or broken.
UNWRITTEN = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one subcommand; the exit code, as shells have it where a signal or a closed pipe ends
    the command."""
    try:
        try:
            return _main(list(sys.argv[1:] if argv is None else argv))
        finally:
            _flush()
    except KeyboardInterrupt:
        return 130
    except OSError as error:
        if error.errno not in UNWRITTEN or error.filename is not None or sys.stdout is None:
            raise
        return _unprinted(error)


def _flush() -> None:
    """Write what is printed so far. Raises OSError."""
    if sys.stdout is not None:  # None: the descriptor was closed
        sys.stdout.flush()


def _unprinted(error: OSError) -> int:
    """The exit code where standard output takes no more; says why unless its reader is gone."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())  # for the flush at the end of the interpreter
    os.close(null)
    if error.errno == errno.EPIPE:  # as of "sglang models | head"
        return 141
    print(f"sglang: the output cannot be written: {error.strerror}", file=sys.stderr)
    return 1


def _main(argv: list[str]) -> int:
    from sglang.srt.config.command_line import Parser

    if isinstance(sys.stdout, io.TextIOWrapper):  # a terminal may have ASCII alone
        sys.stdout.reconfigure(errors="backslashreplace")
    parser = Parser(prog="sglang", description="Run and serve LM programs.", meant=MEANT)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for name, (module, help, more) in COMMANDS.items():
        commands.add_parser(name, help=help, description=more)
        if argv[:1] == [name]:
            try:
                command = import_module(ELSEWHERE.get(tuple(argv[:2]), module))
            except ModuleNotFoundError as error:
                sys.exit(
                    f"sglang {name} needs more: "
                    f"pip install -e '.[cpu]' in the project's folder ({error})"
                )
            own = Parser(prog=f"sglang {name}", description=more)
            command.add_parser_arguments(own)
            code: int = command.run(own.parse_args(argv[1:]), own)
            return code
    parser.parse_args(argv)
    parser.print_help()  # no command is given
    return 2


if __name__ == "__main__":
    sys.exit(main())
