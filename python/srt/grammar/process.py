"""PlanProcess: the parent's handle on one ``child``, with a limit on every wait."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec

from srt.grammar.child import MAX_FRAME, MAX_PLAN, Request
from srt.grammar.plan import Plan

START_SECONDS = 60.0
# As ``-m srt.grammar.child``, but with our own package, and with nothing in the working directory
# that could take a module's place.
ROOT = str(Path(__file__).resolve().parents[2])
SCRIPT = (
    f"import sys; sys.path = [*filter(None, sys.path)]; root = {ROOT!r};"
    "root in sys.path or sys.path.insert(0, root);"
    "from srt.grammar.child import main; main(sys.argv[1:])"
)
# A child computes in one thread, and every thread and arena would take address space.
ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}


class ProcessDied(Exception):
    """The child has ended. ``code``: as ``Popen.returncode``; ``begun``: it had the request."""

    def __init__(self, code: int, begun: bool) -> None:
        super().__init__(f"the compile process has ended with status {code}")
        self.code = code
        self.begun = begun


class PlanProcess:
    """Used by one thread at a time; ``close`` by any.

    Args:
        planner: "module:function" that makes the plans.
        seconds: how long a plan may take.
    """

    def __init__(self, planner: str, seconds: float) -> None:
        self.planner = planner
        self.seconds = seconds
        self.started = 0
        self._lock = threading.Lock()  # of _process and _closed
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._ready = False

    @property
    def pid(self) -> int | None:
        """Of the child that runs, if one does."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """A child, if there is none that runs. Does not wait for it.

        Raises OSError where none can be started, ProcessDied after ``close``.
        """
        if self.pid is not None:
            return
        self.kill()
        command = [sys.executable, "-c", SCRIPT]
        command += ["--planner", self.planner, "--seconds", str(self.seconds)]
        with self._lock:
            if self._closed:
                raise ProcessDied(0, begun=False)
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env={**os.environ, **ONE_THREAD}, bufsize=0,
            )  # fmt: skip
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            os.set_blocking(self._process.stdin.fileno(), False)
            os.set_blocking(self._process.stdout.fileno(), False)
        self._ready = False
        self.started += 1

    def plan(self, request: Request) -> Plan:
        """The child's plan; starts a child where there is none.

        Raises ValueError for a request too long or not encodable, ProcessDied, TimeoutError where
        the plan takes longer than ``seconds``, OSError where no child can be started. A child that
        is late still runs: ``kill`` it.
        """
        frame = msgspec.msgpack.encode(request)
        if len(frame) > MAX_FRAME:
            raise ValueError(f"the constraint has {len(frame)} bytes; at most {MAX_FRAME}.")
        self.start()
        if not self._ready:
            self._starting()
        deadline = time.monotonic() + self.seconds
        self._send(len(frame).to_bytes(4, "little") + frame, deadline)
        self._receive(deadline, begun=False)
        return msgspec.msgpack.decode(self._receive(deadline, begun=True), type=Plan)

    def kill(self) -> None:
        """End the child, whatever it does, and give back its pipes."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def close(self) -> None:
        """End the child and start no other. The thread in ``plan`` gets a ProcessDied."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

    def _starting(self) -> None:
        try:
            self._receive(time.monotonic() + START_SECONDS, begun=False)
        except TimeoutError:
            self.kill()
            raise OSError(f"the compile process is not ready after {START_SECONDS:g} s") from None
        self._ready = True

    def _send(self, data: bytes, deadline: float) -> None:
        left = memoryview(data)
        process = self._alive()
        assert process.stdin
        while left:
            self._wait(process.stdin.fileno(), select.POLLOUT, deadline)
            try:
                left = left[os.write(process.stdin.fileno(), left) :]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                raise ProcessDied(_status(process), begun=False) from None

    def _receive(self, deadline: float, begun: bool) -> bytes:
        size = int.from_bytes(self._take(4, deadline, begun), "little")
        if size > MAX_PLAN:
            raise ProcessDied(0, begun)
        return self._take(size, deadline, begun)

    def _take(self, size: int, deadline: float, begun: bool) -> bytes:
        out = bytearray()
        process = self._alive()
        assert process.stdout
        while len(out) < size:
            self._wait(process.stdout.fileno(), select.POLLIN, deadline)
            try:
                data = os.read(process.stdout.fileno(), min(size - len(out), 1 << 20))
            except BlockingIOError:
                continue
            if not data:
                raise ProcessDied(_status(process), begun)
            out += data
        return bytes(out)

    def _alive(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None:
            raise ProcessDied(0, begun=False)
        return process

    @staticmethod
    def _wait(number: int, event: int, deadline: float) -> None:
        """Until the pipe can be used or is broken."""
        poller = select.poll()
        poller.register(number, event)
        left = deadline - time.monotonic()
        if left <= 0 or not poller.poll(left * 1000):
            raise TimeoutError


def _status(process: subprocess.Popen[bytes]) -> int:
    """Of a child that has closed its pipes."""
    try:
        return process.wait(1)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
