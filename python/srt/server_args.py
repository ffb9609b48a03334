"""``ServerArgs`` under upstream's module name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from sglang.backend.engine.server_args import ServerArgs
from sglang.srt.config.command_line import Parser, keys_from_environment

__all__ = ["ServerArgs", "prepare_server_args"]


def prepare_server_args(argv: Sequence[str]) -> ServerArgs:
    """The settings of a command line of ``launch_server``, keys from the environment included.
    Exits with status 2 where it is wrong, as the command does."""
    parser: argparse.ArgumentParser = Parser(prog="python -m sglang.launch_server")
    ServerArgs.add_cli_args(parser)
    arguments = parser.parse_args(argv)
    try:
        keys_from_environment(arguments, "api_key", "admin_api_key")
        return ServerArgs.from_cli_args(arguments)
    except ValueError as error:
        parser.error(str(error))
