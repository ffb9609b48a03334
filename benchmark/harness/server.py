"""Server: a server started for a measurement by its own command, in a process group that is
suspended (SIGSTOP) while others are measured."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx

from benchmark.peers.child import Group

POLL_SECONDS = 0.2


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server(Group):
    """``{port}`` in ``command`` stands for a free ``port``; ``url`` is where it answers.

    ``ready()`` must be called before the first request.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        command = [part.replace("{port}", str(self.port)) for part in command]
        super().__init__(command, log, environment)

    def ready(self, seconds: float) -> None:
        """Wait until ``/health`` says so.

        Raises OSError, and ends it, where it ends or does not answer within ``seconds``.
        """
        try:
            self._wait(time.monotonic() + seconds, seconds)
        except BaseException:  # an interrupt too: no other object holds it yet
            self.close()
            raise

    def _wait(self, until: float, seconds: float) -> None:
        while (why := self._not_ready()) is not None:
            if (status := self.ended()) is not None:
                why = f"the server ended with {status}"
            elif time.monotonic() > until:
                why = f"the server was not ready within {seconds:g} s: {why}"
            else:
                time.sleep(POLL_SECONDS)
                continue
            raise OSError(f"{why}; {self.end_of_log()}")

    def _not_ready(self) -> str | None:
        """None where it is."""
        try:
            status = httpx.get(f"{self.url}/health", timeout=5).status_code
        except httpx.HTTPError as error:
            return str(error) or type(error).__name__
        return None if status == httpx.codes.OK else f"/health answered {status}"
