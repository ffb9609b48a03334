"""``sglang replay BUNDLE``: do again what a bundle holds, and say whether it fails again."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from sglang.errors import SglangError
from sglang.srt.commands.named_values import named_values
from sglang.terminal.chaos.chaos_command import perform, verify_clients
from sglang.terminal.chaos.chaos_work import work_of
from sglang.terminal.chaos.crash_bundle import load_bundle

EPILOG = """
The bundle may hold the source of a program, which is run: replay bundles of people whose programs
you would run. The exit code is 0 where nothing failed this time, 1 where something did.

  sglang replay chaos-7.json
  sglang replay chaos-7.json --quiet                     # the same work without its faults
  sglang replay chaos-7.json --setting disable_radix_cache=true
"""


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of ``sglang replay``."""
    parser.add_argument("bundle", metavar="BUNDLE", help="a file of 'sglang chaos' or 'sglang run'")
    parser.add_argument("--quiet", action="store_true", help="repeat the work without faults")
    parser.add_argument(
        "--setting", action="append", default=[], metavar="NAME=VALUE",
        help="a setting of the server in place of the bundle's; may be given again",
    )  # fmt: skip
    parser.add_argument("--url", default="", help="a running server to use; default: start one")
    parser.add_argument("--api-key", help="the server's key (default: SGLANG_API_KEY)")
    parser.epilog = EPILOG


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """The exit code: 1 where something failed, 2 where the replay could not begin."""
    try:
        bundle = load_bundle(arguments.bundle)
        verify_clients(bundle.clients)
        for line in bundle.differences():
            print(f"note: {line}", file=sys.stderr)
        for one in bundle.failures[:3]:
            print(f"then: {one['way']}: {one['error'] or repr(one['found'])[:100]}")
        bundle.settings |= named_values("--setting", arguments.setting)
        if arguments.quiet or arguments.url:
            bundle.faults = [one for one in bundle.faults if one.kind in ("cut", "squeeze")]
        if arguments.quiet:
            bundle.faults = []
        key = arguments.api_key or os.environ.get("SGLANG_API_KEY")
        with tempfile.TemporaryDirectory(prefix="sglang-replay-") as folder:
            work = work_of(bundle.work, Path(folder))
            tally = perform(work, bundle, arguments.url, key)
    except (OSError, ValueError, TypeError, SglangError) as error:
        print(f"sglang replay: {error}", file=sys.stderr)
        return 2
    return 1 if tally.lost else 0
