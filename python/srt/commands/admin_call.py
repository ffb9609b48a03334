"""A call of a running server's admin routes, for commands."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from typing import Any

from sglang.srt.config.command_line import keys_from_environment

SECONDS = 10.0  # for one answer


def add_server_arguments(parser: argparse.ArgumentParser) -> None:
    """The server's address, its key, and whether its certificate is verified."""
    parser.add_argument(
        "url", nargs="?", default="http://127.0.0.1:30000",
        help="the server's address (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--admin-api-key",
        help="its admin's key (default: the environment's SGLANG_ADMIN_API_KEY or SGLANG_API_KEY)",
    )
    parser.add_argument(
        "--insecure", action="store_true",
        help="do not verify the server's certificate, as of 127.0.0.1 inside its own container",
    )  # fmt: skip


def read_keys(arguments: argparse.Namespace) -> None:
    """Take the key from the environment where no flag gives it. Raises ValueError."""
    keys_from_environment(arguments, "admin_api_key")
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
        found: dict[str, Any] = json.load(reply)
        return found


def open_server(
    arguments: argparse.Namespace,
    method: str,
    path: str,
    body: dict[str, Any] | None = None,
    seconds: float | None = None,
) -> Any:
    """The server's answer, to be read and closed. Raises as ``call_server``."""
    url, key = arguments.url.rstrip("/"), arguments.admin_api_key
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
        raise OSError(f"no server answers at {arguments.url}: {reason}") from error


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the server answered {error.code} {error.reason}"
