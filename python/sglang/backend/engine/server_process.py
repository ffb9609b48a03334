"""Processes of servers: their port, environment and end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port of ``host`` on which nothing listens."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def own_environment() -> dict[str, str]:
    """Return this process's environment with this package, which may not be installed, first on
    the path."""
    root = Path(__file__).resolve().parents[3]
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def terminate_process(process: subprocess.Popen[Any], timeout: float = 10.0) -> None:
    """Ask a process to end; after ``timeout`` seconds kill it.

    A process that leads a group (``start_new_session=True``) takes its whole group with it.
    """
    leads = _leads_group(process.pid)
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
    if leads:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.poll() is None:
        process.kill()
        process.wait()


def _leads_group(pid: int) -> bool:
    try:
        return os.getpgid(pid) == pid
    except ProcessLookupError:
        return False
