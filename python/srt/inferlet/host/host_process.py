"""HostProcess: the server's handle on the host of guests, which is replaced when it dies.

A run is a function of its guest and its answers, and the server keeps the answers. So a run whose
host has died goes on in the next one: its turns are computed again, and their calls dropped. What
the calls did in the engine stands.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable

import msgspec
from sglang.srt.inferlet.host.host_messages import (
    EXIT,
    MARK,
    MARKS,
    MOST_LANES,
    SOCKET,
    EndGuest,
    GiveAnswers,
    GuestCalls,
    GuestImage,
    GuestLimits,
    HostReady,
    LaunchGuest,
    Order,
    Report,
    decode_reports,
    encode,
)
from sglang.srt.inferlet.host.host_pipe import LoopPipe
from sglang.srt.inferlet.host.run_log import RunLog
from sglang.srt.system.import_root import IMPORT_ROOT
from sglang.srt.system.processes import socket_directory

log = logging.getLogger("sglang.srt.inferlet")
WATCH_SECONDS = 0.1
RETRY_SECONDS = 1.0  # until a host that the system did not start is tried again
START_SECONDS = 30.0
MOST_STARTS = 5  # hosts that die one after the other without an answer
SECRETS = ("SGLANG_API_KEY", "SGLANG_ADMIN_API_KEY", "HF_TOKEN")  # variables a host does not get
MODULE = "sglang.srt.inferlet.host.host_child"
GIVE_BACK = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "65536"}
"""Settings of glibc by which memory of runs that have ended goes back to the system."""


class GuestEnded(Exception):
    """The host has ended a run. ``code`` is the limit's name or what went wrong."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code, self.message = code, message


class HostRun:
    """One run of a guest. ``turn`` is awaited by one task at a time.

    Attributes:
        cpu: seconds of processor time of its turns, one that was cut included.
        turns: turns that have ended.
    """

    def __init__(
        self, number: int, guest: GuestImage, limits: GuestLimits, send: Callable[[Order], None],
        tenant: str,
    ) -> None:  # fmt: skip
        self.number, self.guest, self.limits, self.tenant = number, guest, limits, tenant
        self._send = send
        self.cpu, self.turns = 0.0, 0
        self.alone = False
        self.suspected = 0  # hosts that have died while they worked on it, one after the other
        self.log = RunLog(limits.log_bytes)
        self._due: asyncio.Future[str] | None = None
        self._answers: str | None = None  # answers of the turn in flight
        self._ended: GuestEnded | None = None

    async def turn(self, answers: str | None) -> str:
        """Return the calls of the next turn, as JSON; ``answers`` is None for the first.

        Raises GuestEnded, then and ever after.
        """
        if self._ended is not None:
            raise self._ended
        self._due = asyncio.get_running_loop().create_future()
        self._answers = answers or ""
        self._send(self.launch() if answers is None else GiveAnswers(self.number, answers))
        try:
            return await self._due
        finally:
            self._due = None

    @property
    def due(self) -> bool:
        """Whether a turn is in flight."""
        return self._due is not None

    def launch(self) -> LaunchGuest:
        """The order that starts the run, or rebuilds it."""
        return LaunchGuest(
            self.number, self.guest, self.limits, self.log.turns, self.cpu, self.alone, self.tenant
        )

    def again(self) -> list[Order]:
        """The orders by which another host, or another lane of it, has the run as it was."""
        orders: list[Order] = [self.launch()]
        if self._due is not None and self.turns:
            orders.append(GiveAnswers(self.number, self._answers or ""))
        return orders

    def take(self, report: GuestCalls) -> None:
        """A turn has ended."""
        self.cpu += report.cpu
        self.turns += 1
        self.suspected = 0
        self.log.add(self._answers or "", report.calls)
        if self._due is not None and not self._due.done():
            self._due.set_result(report.calls)

    def fail(self, code: str, message: str, cpu: float = 0.0) -> None:
        """The run is over. ``cpu``: seconds of processor time of the turn that was cut."""
        self.cpu += cpu
        self._ended = GuestEnded(code, message)
        if self._due is not None and not self._due.done():
            self._due.set_exception(self._ended)


class HostProcess:
    """The host of a server. ``start`` it; ``stop`` it at the end.

    Args:
        lanes: threads that run guests.
        memory: bytes that all guests together may use.

    Attributes:
        restarts: hosts that were started in place of others.
        late_cpu: seconds of processor time of turns in which the server has ended their runs.
    """

    def __init__(self, lanes: int, memory: int) -> None:
        self._lanes, self._memory = lanes, memory
        self._runs: dict[int, HostRun] = {}
        self._numbers = itertools.count(1)
        self._child: subprocess.Popen[bytes] | None = None
        self._wire: LoopPipe | None = None
        self._loop = asyncio.get_running_loop()
        self._first: asyncio.Future[str] = self._loop.create_future()
        self._ready = False  # whether the present host has started
        self._orders: list[Order] = []  # sent together at the end of this step of the loop
        self._watching: asyncio.Task[None] | None = None
        self._stopped = False
        self._lost = ""  # the reason, once no host is started any more
        self.restarts, self.late_cpu = 0, 0.0

    @property
    def pid(self) -> int:
        """Process id of the host; 0 where there is none."""
        return self._child.pid if self._child is not None else 0

    @property
    def running(self) -> int:
        """Runs that have not ended."""
        return len(self._runs)

    def working(self) -> set[int]:
        """Numbers of the runs that the host computes a turn of, or did when it died."""
        data = (self._directory / MARKS).read_bytes()
        return {number for (number,) in MARK.iter_unpack(data) if number}

    async def start(self) -> str:
        """Start the host and wait for it; the version of wasmtime. Raises OSError."""
        self._spawn()
        self._watching = asyncio.create_task(self._watch())
        try:
            return await asyncio.wait_for(self._first, START_SECONDS)
        except BaseException as error:
            await self.stop()
            if isinstance(error, asyncio.TimeoutError):
                message = f"the host of inferlets has not started in {START_SECONDS:g} s"
                raise OSError(message) from None
            raise

    def launch(self, guest: GuestImage, limits: GuestLimits, tenant: str = "") -> HostRun:
        """A new run; its first ``turn`` starts it. Tenants that share a thread take turns."""
        run = HostRun(next(self._numbers), guest, limits, self._send, tenant)
        if self._lost:
            run.fail("host_lost", self._lost)
        else:
            self._runs[run.number] = run
        return run

    def end(self, run: HostRun) -> None:
        """End a run at any moment, and forget it. A second call has no effect."""
        if self._runs.pop(run.number, None) is not None:
            run.fail("killed", "the run was ended")
            self._send(EndGuest(run.number))

    async def stop(self) -> None:
        """End all runs and the host."""
        self._stopped = True
        if self._watching is not None:
            self._watching.cancel()
        for run in tuple(self._runs.values()):
            self.end(run)
        if self._wire is not None:
            with contextlib.suppress(OSError):
                self._wire.send(EXIT)
        await asyncio.sleep(0)
        self._remove()

    def _spawn(self) -> None:
        """Start the host's process and connect to it. Raises OSError."""
        self._directory = socket_directory(SOCKET)
        (self._directory / MARKS).write_bytes(bytes(MOST_LANES * MARK.size))
        paths = [IMPORT_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]
        kept = {name: value for name, value in os.environ.items() if name not in SECRETS}
        numbers = [os.getpid(), self._lanes, self._memory]
        self._ready = False
        mine, given = socket.socketpair()
        with given:
            numbers.append(given.fileno())
            try:
                self._child = subprocess.Popen(
                    [sys.executable, "-m", MODULE, str(self._directory), *map(str, numbers)],
                    stdin=subprocess.DEVNULL,
                    env={**GIVE_BACK, **kept, "PYTHONPATH": os.pathsep.join(paths)},
                    pass_fds=[given.fileno()],
                )
            except OSError:
                mine.close()
                raise
        self._wire = LoopPipe(mine, self._take)

    def _remove(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
        if self._wire is not None:
            self._wire.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _send(self, order: Order) -> None:
        if not self._orders:
            self._loop.call_soon(self._flush)
        self._orders.append(order)

    def _flush(self) -> None:
        orders, self._orders = self._orders, []
        if self._wire is not None and not self._stopped:
            with contextlib.suppress(OSError):  # a dead host's runs are sent to the next one
                self._wire.send(encode(orders))

    def _take(self, frame: bytes) -> None:
        try:
            reports = decode_reports(frame)
        except msgspec.DecodeError as error:
            log.error("dropped a malformed frame of %d bytes: %s", len(frame), error)
            return
        for report in reports:
            self._handle(report)

    def _handle(self, report: Report) -> None:
        if isinstance(report, HostReady):
            self._ready = True
            if not self._first.done():
                self._first.set_result(report.version)
            return
        run = self._runs.get(report.run)
        if run is None:
            self.late_cpu += report.cpu
        elif isinstance(report, GuestCalls):
            run.take(report)
        elif report.code == "wait" and not run.alone:
            run.alone = True
            self._rebuild(run)
        else:
            del self._runs[run.number]
            run.fail(report.code, report.message, report.cpu)

    def _rebuild(self, run: HostRun) -> None:
        """Have the run computed again from its log, or end it where the log is not whole."""
        if run.log.complete:
            for order in run.again():
                self._send(order)
        else:
            del self._runs[run.number]
            run.fail(
                "host_lost",
                f"the host of the program was lost, and its answers were more than log_bytes, "
                f"{run.limits.log_bytes}, so that it cannot be rebuilt",
            )

    async def _watch(self) -> None:
        """Replace the host when it has died."""
        failures, pause = 0, WATCH_SECONDS
        suspects = set[int]()
        while True:
            await asyncio.sleep(pause)
            assert self._child is not None
            assert self._wire is not None
            code = self._child.poll()
            if code is None:
                failures = 0 if self._ready else failures
                continue
            self._wire.drain()
            if pause == WATCH_SECONDS:
                log.error("the host of inferlets has exited with code %d", code)
                failures += 1
                suspects = self._suspects()
            if failures > MOST_STARTS:
                return self._give_up(code)
            self._remove()
            try:
                self._spawn()
            except OSError as error:  # no descriptor, process or room on the disk now
                log.error("no host of inferlets can be started: %s", error)
                pause = RETRY_SECONDS
                continue
            pause = WATCH_SECONDS
            self.restarts += 1
            self._orders.clear()
            for run in tuple(self._runs.values()):
                self._revive(run, run.number in suspects)

    def _suspects(self) -> set[int]:
        """Numbers of the runs that a host which has died worked on, none where that is lost."""
        try:
            return self.working()
        except OSError as error:
            log.error("the runs of the lost inferlet host are unknown: %s", error)
            return set()

    def _revive(self, run: HostRun, suspected: bool) -> None:
        run.suspected += suspected
        if run.suspected > 1:
            del self._runs[run.number]
            run.fail("host_lost", "the host has died twice while it worked on this program's turn")
        elif run.turns or run.due:
            self._rebuild(run)

    def _give_up(self, code: int) -> None:
        if not self._first.done():
            self._first.set_exception(OSError(f"the host of inferlets exits with code {code}"))
        self._lost = f"the host of inferlets does not start; it exits with {code}"
        for run in tuple(self._runs.values()):
            del self._runs[run.number]
            run.fail("host_lost", self._lost)
