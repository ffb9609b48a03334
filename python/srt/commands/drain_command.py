"""``sglang drain URL``: has a running server take no new request, and waits for the open ones."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from typing import Any

from sglang.srt.config.command_line import keys_from_environment

SECONDS = 10.0  # for one answer
POLL = 0.2  # seconds between two
SLACK = 10.0  # seconds for requests to end once their time is up


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "url", nargs="?", default="http://127.0.0.1:30000",
        help="the server's address (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--wait", action="store_true", help="return when no request is open")
    parser.add_argument(
        "--admin-api-key",
        help="its admin's key (default: the environment's SGLANG_ADMIN_API_KEY or SGLANG_API_KEY)",
    )
    parser.add_argument(
        "--insecure", action="store_true",
        help="do not verify the server's certificate, as of 127.0.0.1 inside its own container",
    )  # fmt: skip


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """The exit code: 1 where the server does not answer, or requests outlast their time."""
    try:
        keys_from_environment(arguments, "admin_api_key")
        arguments.admin_api_key = arguments.admin_api_key or os.environ.get("SGLANG_API_KEY")
        status = _ask(arguments, "POST")
        late = time.monotonic() + status["seconds_left"] + SLACK
        while arguments.wait and status["pending"] and time.monotonic() < late:
            time.sleep(POLL)
            status = _ask(arguments, "GET")
    except (OSError, ValueError) as error:
        print(f"sglang drain: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.url} drains: {status['pending']} requests open")
    return 1 if arguments.wait and status["pending"] else 0


def _ask(arguments: argparse.Namespace, method: str) -> dict[str, Any]:
    """The state of the drain. Raises OSError and ValueError, with what to tell."""
    url, key = arguments.url.rstrip("/"), arguments.admin_api_key
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"URL is {arguments.url!r}; it must begin with http:// or https://")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    asked = urllib.request.Request(f"{url}/drain", headers=headers, method=method)
    context = ssl._create_unverified_context() if arguments.insecure else None
    try:
        with urllib.request.urlopen(asked, timeout=SECONDS, context=context) as reply:
            status: dict[str, Any] = json.load(reply)
            return status
    except urllib.error.HTTPError as error:
        raise OSError(_message(error)) from error
    except (urllib.error.URLError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise OSError(f"no server answers at {arguments.url}: {reason}") from error


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {error.code} {error.reason}"
