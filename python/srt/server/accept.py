"""Accepting connections with no descriptor left: told once in a while, and survived."""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

log = logging.getLogger("sglang.server")

SILENCE = 10.0  # seconds between two lines about the same trouble
_SCARCE = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


def calm(loop: asyncio.AbstractEventLoop) -> None:
    """Install a handler on ``loop`` that keeps a shortage of descriptors from flooding the log.

    asyncio stops accepting for a second then, and serves who is connected meanwhile; but it reports
    every one of up to ``backlog`` attempts, and a log that nobody drains would block the server.
    """
    told = -SILENCE

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal told
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _SCARCE and "socket" in context):
            loop.default_exception_handler(context)
        elif loop.time() - told >= SILENCE:
            told = loop.time()
            log.error("no connection can be accepted: %s; raise 'ulimit -n'", error.strerror)

    loop.set_exception_handler(handle)
