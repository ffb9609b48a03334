"""NameLookups: looks up the addresses of hosts, each in a thread of its own that may be abandoned.

A lookup cannot be cancelled: if a name server is silent, the system waits for half a minute or
more. So the calling thread waits only until a deadline, and the lookup's thread continues. The
number of these threads is bounded, in total and for each owner.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late


class LookupsBusy(TimeoutError):
    """The lookup could not begin before the deadline, because too many others were running."""


class NameLookups:
    """Lookups of names: at most ``most`` at once, and at most ``share`` of one owner."""

    def __init__(self, most: int, share: int) -> None:
        self._most, self._share = most, share
        self._running: Counter[str] = Counter()  # lookups by owner
        self._ended = threading.Condition()

    def addresses(self, host: str, port: int, deadline: float, owner: str = "") -> list[str]:
        """Return the addresses of a host. Blocks until ``deadline`` on the monotonic clock. Raises
        OSError if the name has none, LookupsBusy if no lookup could begin before the deadline,
        TimeoutError if the lookup did not end before it."""
        self._enter(host, deadline, owner)
        found: Future[list[str]] = Future()
        thread = threading.Thread(
            target=self._look_up, args=(host, port, owner, found), name="srt-lookup", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # the system has no thread to give
            self._leave(owner)
            raise OSError(f"its name cannot be looked up now: {error}") from error
        try:
            return found.result(max(0.0, deadline - time.monotonic()))
        except Late:
            raise TimeoutError(f"the lookup of {host[:80]!r} took too long") from None

    def _enter(self, host: str, deadline: float, owner: str) -> None:
        with self._ended:
            left = max(0.0, deadline - time.monotonic())
            if not self._ended.wait_for(lambda: self._room(owner), left):
                raise LookupsBusy(f"{host[:80]!r} waited too long for other lookups of names")
            self._running[owner] += 1

    def _room(self, owner: str) -> bool:
        return self._running.total() < self._most and self._running[owner] < self._share

    def _leave(self, owner: str) -> None:
        with self._ended:
            self._running -= Counter([owner])
            self._ended.notify_all()

    def _look_up(self, host: str, port: int, owner: str, found: Future[list[str]]) -> None:
        try:
            entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            found.set_result([str(entry[4][0]).partition("%")[0] for entry in entries])
        except BaseException as error:  # ``addresses`` raises it in the calling thread
            found.set_exception(error)
        finally:
            self._leave(owner)
