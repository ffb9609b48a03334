"""``sglang chat``: a chat in the terminal, with a server or a model of its own."""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sglang.errors import ConnectionFailed, SglangError
from sglang.srt.commands.named_values import named_values
from sglang.terminal.chat_history import ChatHistory
from sglang.terminal.chat_session import ChatSession
from sglang.terminal.chat_stream import ChatServer
from sglang.terminal.chat_words import printable

DEFAULT_URL = "http://127.0.0.1:30000"
HISTORY_LINES = 1000
RUNTIME = ("sglang.srt.web", "msgspec", "zmq", "numpy", "tokenizers", "uvicorn")
"""Packages that a server imports and the language does not."""
STOPPED = 130  # exit status after Ctrl-C, as shells have it

EPILOG = """
Ctrl-C stops an answer, Ctrl-D ends the chat, /help lists the commands. Where standard input is no \
terminal, all of it is one message.

  sglang chat                                 # the server on this machine, or the embedded model
  sglang chat ./my-model                      # a model, served for this chat
  sglang chat --url http://10.0.0.7:30000     # a server elsewhere; any of OpenAI's API
  sglang chat --url http://10.0.0.8/v1 --model name
  sglang chat --set temperature=0 < letter.txt
"""


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``sglang chat``."""
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", default="",
        help="directory, GGUF file or hub id, served for this chat alone; without it the server "
        f"at --url or {DEFAULT_URL}, and where none runs there the embedded model",
    )  # fmt: skip
    parser.add_argument("--url", default="", help="a server: any that speaks OpenAI's API")
    parser.add_argument(
        "--model", dest="name", default="", metavar="NAME",
        help="with --url: a model of that server (default: the first of its list); else as MODEL",
    )  # fmt: skip
    parser.add_argument(
        "--api-key", help="the server's key (default: SGLANG_API_KEY or OPENAI_API_KEY)"
    )
    parser.add_argument(
        "--insecure", action="store_true", help="do not verify the server's certificate"
    )
    parser.add_argument("--system", default="", metavar="TEXT", help="system message")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE",
        help="a field of the requests, such as temperature=0 or max_tokens=200; may be given again",
    )  # fmt: skip
    parser.add_argument(
        "--setting", action="append", default=[], metavar="NAME=VALUE",
        help="a setting of the server that is started for MODEL; may be given again",
    )  # fmt: skip
    parser.add_argument("--load", default="", metavar="FILE", help="continue a saved chat")
    parser.add_argument("--stats", action="store_true", help="show tokens and speed of answers")
    parser.epilog = EPILOG


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """The exit code: 1 where there is no server, or a piped message has no answer."""
    try:
        if arguments.model and arguments.url:
            raise ValueError(
                "MODEL is served for this chat and --url names a server; write --model NAME for "
                "one of its models"
            )
        if arguments.model and arguments.name:
            raise ValueError("MODEL and --model are two names of one thing here; give one of them")
        if not arguments.url:
            arguments.model, arguments.name = arguments.model or arguments.name, ""
        if arguments.setting and arguments.url:
            raise ValueError("--setting is of a server that is started here, and --url names one")
        history = ChatHistory(arguments.system, named_values("--set", arguments.set))
        if arguments.load:
            history.load(arguments.load)
        with _server(arguments) as server:
            model = arguments.name or server.models()[0]
            session = ChatSession(server, history, model, _out, arguments.stats)
            return _talk(session) if sys.stdin.isatty() else _once(session)
    except (OSError, ValueError, SglangError) as error:
        print(f"sglang chat: {error}", file=sys.stderr)
        return 1


def _out(text: str) -> None:
    print(text, end="", flush=True)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _server(arguments: argparse.Namespace) -> Iterator[ChatServer]:
    """The server to talk to; one that is started here ends with the block."""
    key = arguments.api_key or os.environ.get("SGLANG_API_KEY")
    if arguments.url:
        yield ChatServer(
            arguments.url, key or os.environ.get("OPENAI_API_KEY") or "", arguments.insecure
        )
        return
    if not arguments.model and not arguments.setting:
        running = ChatServer(DEFAULT_URL, key or "")
        with suppress(ConnectionFailed):
            running.models()
            yield running
            return
    with _own_server(arguments) as url:
        yield ChatServer(url, key or "")


@contextmanager
def _own_server(arguments: argparse.Namespace) -> Iterator[str]:
    """The URL of a server of this chat's own. Raises SglangError where the runtime is missing."""
    if missing := [name for name in RUNTIME if importlib.util.find_spec(name) is None]:
        nothing = "" if arguments.model else f"no server answers at {DEFAULT_URL}, and "
        raise SglangError(
            f"{nothing}a model here needs the runtime, of which {missing[0]} is missing: give "
            "--url of a server, or install the extra cpu"
        )
    from sglang.backend.engine.launched_runtime import Runtime

    settings: dict[str, Any] = {"log_level": "warning"}
    settings |= named_values("--setting", arguments.setting)
    if arguments.model:
        settings["model_path"] = arguments.model
    _tell(f"loading {arguments.model or 'the embedded model'} ...")
    with Runtime(**settings) as runtime:
        yield runtime.url


def _once(session: ChatSession) -> int:
    """Answer standard input as one message. Raises SglangError."""
    text = sys.stdin.read().strip()
    if not text:
        raise ValueError("standard input is empty; there is nothing to answer")
    session.history.ask(text)
    return 0 if session.answer() else STOPPED


def _talk(session: ChatSession) -> int:
    """Read lines until the end of the terminal's input."""
    _tell(f"{printable(session.model)}: /help lists commands, Ctrl-D ends the chat")
    with _line_editing():
        while True:
            try:
                line = input("> ")
                if line.strip() and not session.take(line, _more):
                    return 0
            except EOFError:
                _out("\n")
                return 0
            except KeyboardInterrupt:
                _out("\n(Ctrl-D or /exit ends the chat)\n")


def _more() -> str:
    return input(". ")


@contextmanager
def _line_editing() -> Iterator[None]:
    """Edit lines, and keep them for the next chat, where Python has readline."""
    try:
        import readline
    except ImportError:
        yield
        return
    home = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    path = Path(home) / "sglang" / "chat_history"
    with suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    readline.set_completer(_completions())
    readline.set_completer_delims(" ")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)


def _completions() -> Callable[[str, int], str | None]:
    """Completes the names of commands."""
    from sglang.terminal.chat_words import COMMANDS

    def complete(text: str, number: int) -> str | None:
        found = [f"/{name}" for name in COMMANDS if f"/{name}".startswith(text)]
        return found[number] if text.startswith("/") and number < len(found) else None

    return complete
