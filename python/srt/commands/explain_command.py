"""``sglang explain ID``: asks a running server why a prompt was, or was not, in its cache."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from sglang.srt.config.command_line import keys_from_environment

SECONDS = 10.0


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", help="X-Request-Id, rid or the id of the answer")
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="the server's address")
    parser.add_argument("--api-key", help="its key (default: the environment's SGLANG_API_KEY)")
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
    """Raises OSError and ValueError, with what to tell."""
    keys_from_environment(arguments, "api_key")
    name, key = urllib.parse.quote(arguments.id, safe=""), arguments.api_key
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    url = f"{arguments.url.rstrip('/')}/explain/{name}"
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"--url is {arguments.url!r}; it must begin with http:// or https://")
    try:
        with urllib.request.urlopen(
            urllib.request.Request(url, headers=headers), timeout=SECONDS
        ) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        raise OSError(_message(error)) from error
    except (urllib.error.URLError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise OSError(
            f"no server answers at {arguments.url}: {reason}; start one with: sglang serve, or "
            "give another --url"
        ) from error


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {error.code} {error.reason}"
