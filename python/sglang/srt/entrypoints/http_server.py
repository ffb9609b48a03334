"""``launch_server`` under upstream's module name."""

from __future__ import annotations

import sys

from sglang.backend.server_args import ServerArgs

__all__ = ["launch_server"]


def launch_server(server_args: ServerArgs) -> None:
    """Serve until a signal ends it, in this process and its main thread.

    Raises TypeError or ValueError for a setting out of range, SystemExit where serving failed.
    """
    from srt.config import Config
    from srt.server.arguments import Parser
    from srt.server.launch import serve

    if status := serve(Config.of(**server_args.chosen()), Parser(prog="launch_server")):
        sys.exit(status)
