"""``sglang ps``: the servers that run on this machine, their models and their load."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
from sglang.srt.commands.admin_call import call_server, read_keys

PROBE_SECONDS = 3.0
MODULES = ("sglang.launch_server", "sglang.srt.web.launch")
HEADS = ("PID", "ADDRESS", "MODEL", "STATE", "RUNNING", "WAITING", "KV", "UP")
_NEEDS_KEY = ("401", "403", "key")


@dataclass(frozen=True)
class RunningServer:
    """A server's process, and what it says of itself; None where it does not say.

    Attributes:
        kv_used: share of the KV cache that requests hold, 0 to 1.
        seconds: since its process began.
    """

    pid: int
    address: str
    model: str
    state: str
    running: int | None
    waiting: int | None
    kv_used: float | None
    seconds: float


def add_parser_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--admin-api-key", "--api-key",
        help="key of the servers (default: SGLANG_ADMIN_API_KEY or SGLANG_API_KEY)",
    )  # fmt: skip


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """0, also where nothing runs."""
    try:
        read_keys(arguments)
    except ValueError as error:
        print(f"sglang ps: {error}", file=sys.stderr)
        return 1
    found = [_server(process, arguments.admin_api_key) for process in _processes()]
    if arguments.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    elif not found:
        print("no server runs here; start one with: sglang serve MODEL")
    else:
        print("\n".join(table(found)))
    return 0


def is_server(words: Sequence[str]) -> bool:
    """Whether a command line is a server's."""
    if "-m" in words[:8]:  # after the interpreter's own flags
        at = words.index("-m") + 1
        return words[at : at + 1] != [] and (
            words[at] in MODULES or list(words[at : at + 2]) == ["sglang.srt.cli", "serve"]
        )
    return any(
        Path(word).name == "sglang" and list(words[i + 1 : i + 2]) == ["serve"]
        for i, word in enumerate(words[:2])
    )


def table(found: Sequence[RunningServer]) -> list[str]:
    """The servers as lines of columns."""
    rows = [HEADS, *(_row(one) for one in found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADS))]
    return ["  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths)).rstrip() for row in rows]


def _row(one: RunningServer) -> tuple[str, ...]:
    counts = ("-" if n is None else str(n) for n in (one.running, one.waiting))
    used = "-" if one.kv_used is None else f"{one.kv_used:.0%}"
    return (str(one.pid), one.address or "-", one.model or "-", one.state, *counts, used,
            duration(one.seconds))  # fmt: skip


def duration(seconds: float) -> str:
    """Seconds as 42s, 7m, 3h or 5d."""
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def _processes() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        with suppress(psutil.Error):
            if is_server(words) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def _ports(process: psutil.Process) -> list[tuple[str, int]] | None:
    """Host and port of each listening socket; None where this user may not know."""
    try:
        listed = getattr(process, "net_connections", None) or process.connections
        return sorted(
            {
                (_reached_at(one.laddr.ip), one.laddr.port)
                for one in listed(kind="tcp")
                if one.status == psutil.CONN_LISTEN
            }
        )
    except psutil.Error:
        return None


def _reached_at(host: str) -> str:
    """The address by which this machine reaches a listening one."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)


def _server(process: psutil.Process, key: str | None) -> RunningServer:
    seconds = time.time() - process.create_time()
    ports = _ports(process)
    if not ports:
        state = "other user" if ports is None else "starting"
        return RunningServer(process.pid, "", "", state, None, None, None, seconds)
    with suppress(psutil.Error):
        secure = any(word.startswith("--ssl-certfile") for word in process.cmdline())
        scheme = "https" if secure else "http"
        for host, port in ports:
            address = f"{scheme}://{host}:{port}"
            if (told := _asked(address, key)) is not None:
                return described(process.pid, address, told, seconds)
    host, port = ports[0]
    return RunningServer(process.pid, f"{host}:{port}", "", "no answer", None, None, None, seconds)


def _asked(address: str, key: str | None) -> dict[str, Any] | str | None:
    """The server's description of itself, or its refusal as a text. None where nothing answers."""
    call = argparse.Namespace(url=address, admin_api_key=key, insecure=True)
    try:
        return call_server(call, "GET", "/get_server_info", None, PROBE_SECONDS)
    except OSError as error:
        reason = str(error)
        return None if reason.startswith("no server answers") else reason
    except ValueError:
        return None


def described(pid: int, address: str, told: dict[str, Any] | str, seconds: float) -> RunningServer:
    """The server that answered ``told``: its own description, or why it refuses."""
    if isinstance(told, str):
        state = "needs a key" if any(word in told for word in _NEEDS_KEY) else "refuses"
        return RunningServer(pid, address, "", state, None, None, None, seconds)
    stats = told.get("stats") or {}
    total = stats.get("total_tokens") or 0
    held = total - stats.get("free_tokens", 0) - stats.get("evictable_tokens", 0)
    waiting = int(stats.get("waiting", 0)) + int(stats.get("compiling", 0))
    return RunningServer(
        pid, address, str(told.get("served_model_name") or ""), "serving",
        int(stats.get("running", 0)), waiting, held / total if total else None, seconds,
    )  # fmt: skip
