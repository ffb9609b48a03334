"""Waiting for what another thread, process or task does. The limit is long: a busy machine is no
failure."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

SECONDS = 120.0


def until(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Return once the condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.005)


async def reached(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """``until``, while the event loop goes on."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not happen"
        await asyncio.sleep(0.005)
