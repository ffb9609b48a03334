"""PlanProcess: the parent's handle on one ``compile_worker``, with a limit on every wait."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time

import msgspec
from sglang.srt.grammar.compile_plan import CompilePlan
from sglang.srt.grammar.compile_worker import MAX_FRAME, MAX_PLAN, PlanRequest
from sglang.srt.system.import_root import IMPORT_ROOT
from sglang.srt.system.processes import stopped_twice

STARTING = 3  # times its patience before a child that does not start is replaced
LOOK = 0.5  # seconds between two looks at a child that does not answer
# As ``-m sglang.srt.grammar.compile_worker``, but with our own package: no file in the working
# directory can replace a module.
SCRIPT = (
    f"import sys; sys.path = [*filter(None, sys.path)]; root = {IMPORT_ROOT!r};"
    "root in sys.path or sys.path.insert(0, root);"
    "from sglang.srt.grammar.compile_worker import main; main(sys.argv[1:])"
)
# A child computes in one thread, and every thread and arena would take address space.
ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}


class ProcessDied(Exception):
    """The child has ended. ``code`` is ``Popen.returncode``; ``begun``: it had the request."""

    def __init__(self, code: int, begun: bool) -> None:
        super().__init__(f"the compile process has ended with status {code}")
        self.code = code
        self.begun = begun


class PlanProcess:
    """Used by one thread at a time; ``close`` by any.

    Args:
        planner: "module:function" that makes the plans.
        seconds: of processor time that a plan may take.
        patience: seconds that a caller waits for one, the start of a child included.
    """

    def __init__(self, planner: str, seconds: float, patience: float) -> None:
        self.planner = planner
        self.seconds = seconds
        self.patience = patience
        self.started = 0
        self._lock = threading.Lock()  # guards _process and _closed
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        self._ready = False
        self.begun = False  # whether the child has the last request
        self._since = 0.0  # when the child was started

    @property
    def pid(self) -> int | None:
        """The running child's process id, None where no child runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start a child where none runs. Does not wait for it.

        Raises OSError where none can be started, ProcessDied after ``close``.
        """
        if self.pid is not None:
            return
        self.kill()
        command = [sys.executable, "-c", SCRIPT]
        command += ["--planner", self.planner, "--seconds", str(self.seconds),
                    "--patience", str(self.patience)]  # fmt: skip
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
        self._since = time.monotonic()
        self.started += 1

    def plan(self, request: PlanRequest) -> CompilePlan:
        """The child's plan; starts a child where there is none.

        Raises ValueError for a request too long or not encodable, ProcessDied (with SIGPROF where
        the plan took more than ``seconds`` of processor time, SIGSTOP where the child was stopped),
        TimeoutError where there is none after ``patience``, OSError where no child can be started.
        A child that is late still runs: ``give_up`` on it.
        """
        frame = msgspec.msgpack.encode(request)
        if len(frame) > MAX_FRAME:
            raise ValueError(f"the constraint has {len(frame)} bytes; at most {MAX_FRAME}.")
        self.start()
        deadline = time.monotonic() + self.patience
        self.begun = False
        if not self._ready:
            self._receive(deadline, begun=False)
            self._ready = True
        self._send(len(frame).to_bytes(4, "little") + frame, deadline)
        self._receive(deadline, begun=False)
        self.begun = True
        return msgspec.msgpack.decode(self._receive(deadline, begun=True), type=CompilePlan)

    def kill(self) -> None:
        """Kill the child and close its pipes."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def give_up(self) -> None:
        """Kill a child that is late. One that had no time to start lives on: the next request finds
        it ready."""
        if self.begun or self._ready or time.monotonic() - self._since > STARTING * self.patience:
            self.kill()

    def close(self) -> None:
        """Kill the child and start no other. The thread in ``plan`` gets a ProcessDied."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.kill()

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

    def _wait(self, number: int, event: int, deadline: float) -> None:
        """Wait until the pipe can be used or is broken. A stopped child is killed: it may never
        go on. Raises TimeoutError."""
        stopped = stopped_twice(self._alive().pid)
        poller = select.poll()
        poller.register(number, event)
        while (left := deadline - time.monotonic()) > 0:
            if poller.poll(min(left, LOOK) * 1000):
                return
            if stopped():
                self._alive().kill()
                raise ProcessDied(-signal.SIGSTOP, self.begun)
        raise TimeoutError


def _status(process: subprocess.Popen[bytes]) -> int:
    """Exit status of a child that has closed its pipes."""
    try:
        return process.wait(1)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
