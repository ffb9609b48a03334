"""Processes that belong together: a child that ends with its parent, a child that was stopped, the
directory of their sockets."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PARENT_SECONDS = 0.25  # between two looks at the parent's id
SOCKET_BYTES = 103 if sys.platform == "darwin" else 107  # the longest path of a Unix socket
SHORT_DIRECTORIES = ("/tmp", "/var/tmp", "/dev/shm")  # tried where TMPDIR is too long


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


def socket_directory(name: str) -> Path:
    """Make a directory of mode 0700 in which a socket ``name`` has a path short enough for an
    address: under TMPDIR, or where that is too long under a shorter one. Raises OSError."""
    for parent in (None, *SHORT_DIRECTORIES):
        try:
            found = Path(tempfile.mkdtemp(prefix="sglang-", dir=parent))
        except OSError:
            if parent is None:
                raise
            continue
        if len(os.fsencode(found / name)) <= SOCKET_BYTES:
            return found
        found.rmdir()
    raise OSError(
        errno.ENAMETOOLONG,
        f"the engine's socket needs a path of at most {SOCKET_BYTES} bytes; one below TMPDIR "
        f"({tempfile.gettempdir()}) is longer, and nothing can be made in "
        f"{', '.join(SHORT_DIRECTORIES)}; set TMPDIR to a shorter directory",
    )
