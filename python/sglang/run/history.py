"""History: the last calls of this process's programs to their backends."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

KEPT = 100


@dataclass
class HistoryEntry:
    """One call.

    Attributes:
        backend: name of the backend.
        call: call object of ``backend/base``.
        answer: the call's result; None while it is in flight and after a failure.
        error: exception of a failed call.
        began, ended: seconds of ``time.time()``; ``ended`` is 0 while the call is in flight.
    """

    backend: str
    call: Any
    answer: Any = None
    error: BaseException | None = None
    began: float = 0.0
    ended: float = 0.0


class History:
    """The last ``kept`` calls, oldest first. Thread-safe."""

    def __init__(self, kept: int = KEPT) -> None:
        self._entries: deque[HistoryEntry] = deque(maxlen=kept)
        self._lock = threading.Lock()

    @contextmanager
    def call(self, backend: str, call: Any) -> Iterator[HistoryEntry]:
        """Add an entry for a call that is made inside the context; the caller sets ``answer``."""
        entry = HistoryEntry(backend, call, began=time.time())
        with self._lock:
            self._entries.append(entry)
        try:
            yield entry
        except BaseException as error:
            entry.error = error
            raise
        finally:
            entry.ended = time.time()

    def last(self, count: int) -> list[HistoryEntry]:
        """Return the last ``count`` entries, oldest first."""
        with self._lock:
            return list(self._entries)[-count:] if count > 0 else []

    def clear(self) -> None:
        """Remove all entries."""
        with self._lock:
            self._entries.clear()


HISTORY = History()
