"""Helpers that other packages' launchers import."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import Any


def terminate_process(process: subprocess.Popen[Any], timeout: float = 10.0) -> None:
    """Ask a process to end; after ``timeout`` seconds kill it.

    Where it leads a process group of its own (``start_new_session=True``), what it started and
    left behind is killed as well.
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
