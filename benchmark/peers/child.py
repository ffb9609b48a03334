"""Child: a contender's process, as seen from here. Only one runs at a time: the others are stopped
by signal, since an idle engine may still spin on a core.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmark.peers.watcher import Watcher

ROOT = Path(__file__).resolve().parents[2]
LAST_LINES = 5  # lines of the log, shown where a contender fails
CLOSE_SECONDS = 15.0


class Failed(Exception):
    """A contender did not carry out a request; the text says why."""


class Group:
    """A process in a process group of its own (with all it starts), run in the repository's root,
    so that one signal stops or wakes them. They end with this process at the latest, even where it
    is killed.

    What it prints goes to ``log``, answers on a pipe left out. ``pipes``: its standard input and
    output are pipes from and to here.
    """

    def __init__(
        self, command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None,
        *, pipes: bool = False,
    ) -> None:  # fmt: skip
        self._log = log
        self._watcher = Watcher()
        try:
            with log.open("wb") as errors:
                self._process = subprocess.Popen(
                    list(command),
                    cwd=ROOT,
                    stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if pipes else errors,
                    stderr=errors,
                    preexec_fn=self._watcher.lead,
                    env={**os.environ, **(environment or {})},
                )
        except BaseException:  # an interrupt too: the child may run, and no object could close it
            self._watcher.act()
            raise

    def pause(self) -> None:
        """Stop all of them where they are."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> int | None:
        """The exit status of one that has ended."""
        return self._process.poll()

    def end_of_log(self) -> str:
        lines = self._log.read_text(encoding="utf-8", errors="replace").splitlines()
        return f"end of {self._log}: " + " | ".join(lines[-LAST_LINES:])

    def close(self) -> None:
        """End the process and those it started."""
        self.resume()
        self._ask_to_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_SECONDS)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._watcher.dismiss()

    def _ask_to_end(self) -> None:
        self._process.terminate()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class Child(Group):
    """``python -m module``, used over pipes as ``sides.wire`` says."""

    def __init__(
        self, python: str, module: str, log: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__([python, "-m", module], log, environment, pipes=True)
        self._pending, self._late = b"", False

    def ask(self, question: dict[str, Any], seconds: float) -> Any:
        """The child's answer. The process is left stopped. Raises Failed on an error or a late
        answer, and from then on: what it would say next answers an earlier question."""
        if self._late:
            raise Failed("an earlier answer of it did not come in time")
        self.resume()
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            answer = json.loads(self._line(time.monotonic() + seconds))
        except (OSError, ValueError) as error:
            self.pause()
            raise Failed(f"{error}; {self.end_of_log()}") from error
        self.pause()
        if "error" in answer:
            raise Failed(answer["error"])
        return answer["ok"]

    def _line(self, until: float) -> bytes:
        assert self._process.stdout is not None
        while b"\n" not in self._pending:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                self._late = True
                raise OSError("no answer in time")
            if not (piece := os.read(self._process.stdout.fileno(), 1 << 20)):
                raise OSError(f"the process ended with {self._process.wait()}")
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _ask_to_end(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def close(self) -> None:
        super().close()
        assert self._process.stdout is not None
        self._process.stdout.close()
