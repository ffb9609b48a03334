"""``launch_server`` under upstream's module name."""

from __future__ import annotations

import argparse
import sys

from sglang.backend.engine.server_args import ServerArgs

__all__ = ["launch_server"]


def launch_server(server_args: ServerArgs) -> None:
    """Serve until a signal ends it, in this process and its main thread. Keys that ``server_args``
    does not have are taken from the environment, as the command does.

    Raises SystemExit where a setting is out of range, or serving failed.
    """
    from sglang.srt.config.command_line import Parser
    from sglang.srt.http.launch import add_parser_arguments, run

    parser = Parser(prog="launch_server")
    add_parser_arguments(parser)
    arguments = parser.parse_args([], argparse.Namespace(**server_args.chosen()))
    if status := run(arguments, parser):
        sys.exit(status)
