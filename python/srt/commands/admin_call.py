"""A call of a running server's admin routes, for commands."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import ssl
import urllib.error
import urllib.request
from typing import Any

from sglang.srt.config.command_line import keys_from_environment

DEFAULT_URL = "http://127.0.0.1:30000"
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d+)?(/.*)?")  # an address without http://
SECONDS = 10.0  # for one answer


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """The server's address, by position or as --url, its key, and whether its certificate is
    verified."""
    address = parser.add_mutually_exclusive_group()
    address.add_argument(
        "url", metavar="URL", nargs="?", default=DEFAULT_URL,
        help="the server's address (default: %(default)s)",
    )  # fmt: skip
    address.add_argument("--url", dest="named_url", metavar="URL", help="the server's address")
    parser.add_argument(
        "--admin-api-key",
        "--api-key",
        help="the server's admin key (default: SGLANG_ADMIN_API_KEY or SGLANG_API_KEY)",
    )
    parser.add_argument(
        "--insecure", action="store_true",
        help="do not verify the server's certificate, for example for 127.0.0.1 in a container",
    )  # fmt: skip


def read_keys(arguments: argparse.Namespace) -> None:
    """Take the key from the environment where no flag gives it, and the address of the flag that
    gives one. Raises ValueError."""
    keys_from_environment(arguments, "admin_api_key")
    arguments.url = getattr(arguments, "named_url", None) or getattr(arguments, "url", DEFAULT_URL)
    arguments.admin_api_key = arguments.admin_api_key or os.environ.get("SGLANG_API_KEY")


def call_server(
    arguments: argparse.Namespace,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    seconds: float = SECONDS,
) -> dict[str, Any]:
    """The server's answer. Raises OSError and ValueError, with what to tell."""
    with open_server(arguments, method, path, body, seconds) as reply:
        try:
            found = json.load(reply)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise ValueError(f"{arguments.url} answers {path} with no JSON object; it is no server "
                             "of this project")  # fmt: skip
        return found


def open_server(
    arguments: argparse.Namespace,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    seconds: float | None = None,
) -> Any:
    """The server's answer, to be read and closed. Raises the errors of ``call_server``."""
    url, key = arguments.url.rstrip("/"), arguments.admin_api_key
    if HOST.fullmatch(url):
        url = f"http://{url}"
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"URL is {arguments.url!r}; it must begin with http:// or https://")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    data = None if body is None else json.dumps(body).encode()
    if data is not None:
        headers["Content-Type"] = "application/json"
    asked = urllib.request.Request(f"{url}{path}", data, headers, method=method)
    context = ssl._create_unverified_context() if arguments.insecure else None
    try:
        return urllib.request.urlopen(asked, timeout=seconds, context=context)
    except urllib.error.HTTPError as error:
        raise OSError(_message(error)) from error
    except (urllib.error.URLError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise OSError(
            f"no server answers at {arguments.url}: {reason}; start one with: sglang serve, or "
            "give the URL of another"
        ) from error


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {error.code} {error.reason}"
