"""The parent process of an engine: when it ends, whatever ended it, the engine ends too."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

DEATH = signal.SIGUSR2  # sent by the kernel when the parent ends; its default is to end a process
PR_SET_PDEATHSIG = 1
SECONDS = 0.25  # between two looks where the kernel sends nothing


def follow(parent: int, directory: Path) -> None:
    """End this process, and remove ``directory``, once ``parent`` is no longer its parent.

    A thread of its own waits, so that a model that is being loaded, a send without a receiver or a
    long forward pass delays nothing. On Linux the kernel sends ``DEATH``; elsewhere the thread
    looks every ``SECONDS``. Call this before any other thread starts: all must block the signal.
    """
    if sys.platform == "linux":
        signal.pthread_sigmask(signal.SIG_BLOCK, {DEATH})
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, DEATH)
    threading.Thread(target=_watch, args=(parent, directory), name="parent", daemon=True).start()


def _watch(parent: int, directory: Path) -> None:
    while os.getppid() == parent:
        if sys.platform == "linux":
            signal.sigtimedwait({DEATH}, SECONDS)
        else:
            time.sleep(SECONDS)
    shutil.rmtree(directory, ignore_errors=True)
    os._exit(0)
