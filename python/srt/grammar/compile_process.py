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

STARTING = 3  # multiple of ``patience`` after which a child that does not start is replaced
LOOK = 0.5  # seconds between two checks of a child that does not answer
# Same as ``-m sglang.srt.grammar.compile_worker``, but without the working directory in sys.path,
# so that no file there can replace a module.
SCRIPT = (
    f"import sys; sys.path = [*filter(None, sys.path)]; root = {IMPORT_ROOT!r};"
    "root in sys.path or sys.path.insert(0, root);"
    "from sglang.srt.grammar.compile_worker import main; main(sys.argv[1:])"
)
# A child computes in one thread. More threads and arenas would take limited address space.
ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}


class ProcessDied(Exception):
    """The child has ended. ``code``: ``Popen.returncode``; ``begun``: during a request."""

    def __init__(self, code: int, begun: bool) -> None:
        super().__init__(f"the compile process has ended with status {code}")
        self.code = code
        self.begun = begun


class PlanProcess:
    """Handle on a compile process. One thread at a time may use it; any thread may ``close`` it.

    Args:
        planner: "module:function" that makes the plans.
        seconds: limit of the processor time of a plan.
        patience: limit of the seconds that a caller waits for a plan, with the start of a child.
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
        self.begun = False  # True if the child has begun the last request
        self._since = 0.0  # time of the child's start

    @property
    def pid(self) -> int | None:
        """Process id of the running child, None if no child runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start a child if none runs, without waiting until it is ready.

        Raises OSError if no process can be started, ProcessDied after ``close``.
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
        """Return the child's plan; start a child if none runs.

        Raises ValueError for a request too long or not encodable, ProcessDied (code -SIGPROF: the
        plan exceeded ``seconds`` of processor time; -SIGSTOP: the child was stopped), TimeoutError
        if there is no plan after ``patience``, OSError if no child can be started. After a
        TimeoutError the child still runs; call ``give_up``.
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
        """Kill a child that is late. A child that is still starting is kept for the next request,
        up to STARTING times ``patience``."""
        if self.begun or self._ready or time.monotonic() - self._since > STARTING * self.patience:
            self.kill()

    def close(self) -> None:
        """Kill the child and start no other. A call of ``plan`` in flight raises ProcessDied."""
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
        """Wait until the pipe is ready or broken. A stopped child is killed, because it may never
        continue. Raises TimeoutError, ProcessDied."""
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
    """Return the exit status of a child that has closed its pipes; kill it if it still runs."""
    try:
        return process.wait(1)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
