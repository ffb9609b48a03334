"""``sglang drain URL``: has a running server take no new request, and waits for the open ones."""

from __future__ import annotations

import argparse
import sys
import time

from sglang.srt.commands.admin_call import add_server_arguments, call_server, read_keys

POLL = 0.2  # seconds between two looks
SLACK = 10.0  # seconds for requests to end once their time is up


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    parser.add_argument("--wait", action="store_true", help="return when no request is open")


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """The exit code: 1 where the server does not answer, or requests outlast their time."""
    try:
        read_keys(arguments)
        status = call_server(arguments, "POST", "/drain")
        late = time.monotonic() + status["seconds_left"] + SLACK
        while arguments.wait and status["pending"] and time.monotonic() < late:
            time.sleep(POLL)
            status = call_server(arguments, "GET", "/drain")
    except (OSError, ValueError) as error:
        print(f"sglang drain: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.url} drains: {status['pending']} requests open")
    return 1 if arguments.wait and status["pending"] else 0
