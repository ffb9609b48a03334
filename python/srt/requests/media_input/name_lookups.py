"""NameLookups: the addresses of hosts' names, each looked up in a thread that may be left behind.

Nothing can end a lookup: where a name server is silent, the system waits for half a minute or more.
So the thread that needs the addresses waits until a deadline alone, and the lookup's own thread
goes on. How many of those there are is bounded, over all and for one owner.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Late


class LookupsBusy(TimeoutError):
    """No lookup was begun until the deadline, as others went on."""


class NameLookups:
    """Lookups of names, at most ``most`` at a time, and ``share`` of one owner."""

    def __init__(self, most: int, share: int) -> None:
        self._most, self._share = most, share
        self._running: Counter[str] = Counter()  # lookups by owner
        self._ended = threading.Condition()

    def addresses(self, host: str, port: int, deadline: float, owner: str = "") -> list[str]:
        """The addresses of a host. Waits for them, or for a thread, until ``deadline`` on the
        monotonic clock. Raises OSError where there is none, at the deadline TimeoutError, which is
        LookupsBusy where it waited for a thread."""
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
        except BaseException as error:  # raised where the addresses are waited for
            found.set_exception(error)
        finally:
            self._leave(owner)
