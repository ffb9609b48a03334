"""Launch: bind the port, start the engine process, serve, drain, and clean up.

The engine process is started before this process imports the server (``sglang.srt.web.serving``),
because the engine's imports and model take longer than all other steps.

bound      the port is bound; a port in use ends the launch before a model is read
loading    the engine process reads the model
serving    the first line of standard output was printed
draining   after SIGTERM, SIGINT, SIGHUP or POST /drain: new requests get 503, open ones may finish
(ended)    after the drain of a signal, by a second signal, or because the engine was lost for good
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import logging
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

from sglang.srt.config import Config, add_arguments, add_model_argument, from_arguments
from sglang.srt.config.command_line import Parser, keys_from_environment
from sglang.srt.config.engine_configs import engine_configs
from sglang.srt.config.listening import bind, tls_options
from sglang.srt.engine.process import Started
from sglang.srt.system import logs


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the model argument and every flag of the server."""
    add_model_argument(parser)
    add_arguments(parser)


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until a signal. Return the exit code."""
    parser = Parser(
        prog="python -m sglang.launch_server",
        description="Serve a model over HTTP: OpenAI's routes under /v1, and /generate.",
    )
    add_parser_arguments(parser)
    return run(parser.parse_args(argv), parser)


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Serve with the settings of a parsed command line. Return the exit code."""
    logs.configure(arguments.log_level, arguments.log_format)
    try:
        keys_from_environment(arguments, "api_key", "admin_api_key")
        config = from_arguments(arguments)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if config.server.log_level != "debug":
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    if config.parallel.node_rank:
        return _serve_node(config)
    _signals_before_the_loop(config)
    try:
        with contextlib.ExitStack() as stack:
            listener = stack.enter_context(_bind(config))
            engines = {
                name: stack.enter_context(Started(own)) for name, own in engine_configs(config)
            }
            return _serve(config, listener, engines, parser)
    except OSError as error:
        print(f"sglang: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


def _serve_node(config: Config) -> int:
    """Run ranks of this node for the server on another machine. Return the exit code."""
    from sglang.srt.ranks.node import run_node

    try:
        refusal = run_node(config)
    except OSError as error:
        refusal = str(error)
    if refusal:
        print(f"sglang: {refusal}", file=sys.stderr)
    return 1 if refusal else 0


def _signals_before_the_loop(config: Config) -> None:
    """Install signal handlers that end the process and the engine in order. The event loop later
    replaces them by its own."""

    def end(number: int, _: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup ignores SIGHUP
        reads_keys = bool(config.edge.api_keys_file)  # SIGHUP then reads the keys again
        signal.signal(signal.SIGHUP, (lambda *_: None) if reads_keys else end)


def _serve(
    config: Config,
    listener: socket.socket,
    engines: Mapping[str, Started],
    parser: argparse.ArgumentParser,
) -> int:
    from sglang.srt.engine.client import EngineLost
    from sglang.srt.requests.media_input.media_loading import MediaError
    from sglang.srt.runtime.tenants import Tenants
    from sglang.srt.runtime.toolbox.tool_processes import ToolboxError
    from sglang.srt.tokenizer import TokenizerError
    from sglang.srt.tokenizer.jinja_chat_template import ChatTemplateError
    from sglang.srt.web import serving
    from sglang.srt.web.telemetry.request_tracing import TracingError

    try:
        Tenants(config)
        tls_options(config.edge)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    try:
        return asyncio.run(serving.serve(config, listener, engines))
    except (
        TokenizerError, ChatTemplateError, TracingError, MediaError, EngineLost, ToolboxError,
    ) as error:  # fmt: skip
        print(f"sglang: {error}", file=sys.stderr)
        return 1


def _bind(config: Config) -> socket.socket:
    """Return a socket that is bound to the listening address. Raises OSError with advice."""
    host, port = config.server.host, config.server.port
    try:
        return bind(host, port)
    except OSError as error:
        reason = error.strerror or error
        elsewhere = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
        flag = "--host" if elsewhere else "--port"
        raise OSError(
            f"cannot listen on {host} port {port}: {reason}; choose another with {flag}"
        ) from error
