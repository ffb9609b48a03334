"""Processes that belong together: a child that ends with its parent, a child that was stopped."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

PARENT_SECONDS = 0.25  # between two looks at the parent's id


def when_orphaned(parent: int, action: Callable[[], object]) -> None:
    """Call ``action`` once, in a thread of its own, when ``parent`` is not this process's parent.

    The thread waits beside the others, so that a model that is being loaded, a send without a
    receiver or a long forward pass delays nothing. A parent that has ended already counts too.
    """
    threading.Thread(target=_watch, args=(parent, action), name="parent", daemon=True).start()


def _watch(parent: int, action: Callable[[], object]) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    action()


def stopped_twice(pid: int) -> Callable[[], bool]:
    """Return a function that looks at a process: whether it is stopped (SIGSTOP) and was so at the
    last look. Where this process was stopped too, the other one is about to go on as well."""
    import psutil

    seen = False

    def look() -> bool:
        nonlocal seen
        before, seen = seen, False
        with suppress(psutil.Error):
            seen = psutil.Process(pid).status() == psutil.STATUS_STOPPED
        return before and seen

    return look
