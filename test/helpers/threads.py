"""Threads of the project in this process.

Earlier tests leave threads of others, which may begin more at any time: those are not counted.
"""

from __future__ import annotations

import threading

OURS = ("sglang", "srt", "asyncio")
"""What names begin with; the last are an event loop's own threads for what would block it."""


def running_threads() -> int:
    """Number of threads that run at the moment."""
    return sum(thread.name.startswith(OURS) for thread in threading.enumerate())
