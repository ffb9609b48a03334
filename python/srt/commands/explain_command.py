"""``sglang explain ID``: asks a running server why a prompt was, or was not, in its cache."""

from __future__ import annotations

import argparse
import json
import sys
import urllib.parse
from typing import Any

from sglang.srt.commands.admin_call import DEFAULT_URL, call_server
from sglang.srt.config.command_line import keys_from_environment


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", help="X-Request-Id, rid or the id of the answer")
    parser.add_argument("--url", default=DEFAULT_URL, help="the server's address")
    parser.add_argument("--api-key", help="the server's key (default: SGLANG_API_KEY)")
    parser.add_argument(
        "--insecure", action="store_true", help="do not verify the server's certificate"
    )
    parser.add_argument("--json", action="store_true", help="print what the server answered")


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """The exit code: 1 where there is no explanation."""
    try:
        found = _fetch(arguments)
    except (OSError, ValueError) as error:
        print(f"sglang explain: {error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return 0
    prompts = found["prompts"]
    for i, prompt in enumerate(prompts):
        if len(prompts) > 1:
            print(f"{'' if i == 0 else chr(10)}prompt {i}")
        print(prompt["text"])
    return 0


def _fetch(arguments: argparse.Namespace) -> Any:
    """Request the explanation from the server. Raises OSError and ValueError, whose texts are
    printed."""
    keys_from_environment(arguments, "api_key")
    server = argparse.Namespace(
        url=arguments.url, admin_api_key=arguments.api_key, insecure=arguments.insecure
    )
    return call_server(server, "GET", f"/explain/{urllib.parse.quote(arguments.id, safe='')}")
