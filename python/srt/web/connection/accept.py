"""Accepting of connections, up to the limit of file descriptors. If none is left, the server keeps
running and logs the shortage at intervals."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
from typing import Any

log = logging.getLogger("sglang.server")

DESCRIPTORS = 1 << 16
SILENCE = 10.0  # seconds between two log lines about the shortage
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def allow_connections() -> None:
    """Raise the process's limit of file descriptors to ``DESCRIPTORS``, or as far as allowed. Each
    connection takes one descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # some systems report no limit but have one
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def calm(loop: asyncio.AbstractEventLoop) -> None:
    """Install a handler on ``loop`` that keeps a shortage of descriptors from flooding the log.

    In a shortage, asyncio stops accepting for a second and serves open connections meanwhile. But
    it reports each of up to ``backlog`` attempts. A full log pipe would block the server.
    """
    logged = -SILENCE

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal logged
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _SCARCE and "socket" in context):
            loop.default_exception_handler(context)
        elif loop.time() - logged >= SILENCE:
            logged = loop.time()
            log.error("no connection can be accepted: %s; raise 'ulimit -n'", error.strerror)

    loop.set_exception_handler(handle)
