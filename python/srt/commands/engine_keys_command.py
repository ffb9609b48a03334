"""``sglang engine-keys``: keys for an engine on another machine and the servers that use it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sglang.srt.remote.curve_keys import write_keys


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", type=Path, help="new files engine.key and front.key go there")


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Write the files; the exit code."""
    try:
        engine, front = write_keys(arguments.directory)
    except OSError as error:
        print(f"sglang: {error}", file=sys.stderr)
        return 1
    print(f"{engine}: for 'sglang engine --curve-keys'")
    print(f"{front}: for the servers that use it; copy it to their machines as it is, mode 0600")
    return 0
