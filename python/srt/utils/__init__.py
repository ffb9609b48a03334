"""Helpers that upstream's tests and examples import."""

from __future__ import annotations

import socket
from contextlib import suppress

__all__ = ["is_port_available", "kill_process_tree"]


def is_port_available(port: int) -> bool:
    """Whether nothing listens on ``port`` of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def kill_process_tree(
    parent_pid: int | None, include_parent: bool = True, skip_pid: int | None = None
) -> None:
    """Kill a process and all its descendants.

    Args:
        parent_pid: the process; None: this one, which then stays.
        skip_pid: a child that stays.
    """
    import psutil

    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(parent_pid)
        found = parent.children(recursive=True)
        if include_parent and parent_pid is not None:
            found.insert(0, parent)  # before it can start more
        for process in found:
            if process.pid != skip_pid:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
