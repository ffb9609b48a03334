"""``sglang workers URL``: shows the engines of a running server, adds one, lets one go."""

from __future__ import annotations

import argparse
import sys

from sglang.srt.commands.admin_call import SECONDS, add_server_arguments, call_server, read_keys


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    add_server_arguments(parser)
    change = parser.add_mutually_exclusive_group()
    change.add_argument(
        "--add", metavar="ADDRESS", help="also send requests to the engine at tcp://HOST:PORT"
    )
    change.add_argument("--remove", metavar="NAME", help="send no more requests to an engine")
    parser.add_argument(
        "--seconds", type=float, default=30.0,
        help="with --remove: time for its requests to end; then they move to other engines "
        "(default: %(default)s)",
    )  # fmt: skip


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """The exit code: 1 where the server does not answer, or refuses."""
    try:
        read_keys(arguments)
        if arguments.add is not None:
            found = call_server(arguments, "POST", "/workers", {"url": arguments.add}, 60.0)
        elif arguments.remove is not None:
            body = {"name": arguments.remove, "seconds": arguments.seconds}
            most = arguments.seconds + SECONDS
            found = call_server(arguments, "POST", "/workers/leave", body, most)
        else:
            found = call_server(arguments, "GET", "/workers")
    except (OSError, ValueError) as error:
        print(f"sglang workers: {error}", file=sys.stderr)
        return 1
    heads = ("engine", "state", "pending", "routed", "restarts", "KV tokens")
    print("{:<32} {:<8} {:>8} {:>8} {:>8} {:>10}".format(*heads))
    for each in found["workers"]:
        print(
            f"{each['name']:<32} {each['state']:<8} {each['pending']:>8} {each['routed']:>8} "
            f"{each['restarts']:>8} {each['max_total_num_tokens']:>10}"
        )
    return 0
