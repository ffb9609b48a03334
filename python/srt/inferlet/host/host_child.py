"""The host of guests: a child process of the server with a few lanes.

Its main thread moves messages between the socket and the lanes; a ticker looks at the lanes'
deadlines and at the memory that the process uses. The process holds no key, writes no file, gains
no privilege, and ends with its parent.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from mmap import mmap
from pathlib import Path

import msgspec
from sglang.srt.inferlet.host.guest_lane import GuestLane
from sglang.srt.inferlet.host.host_messages import (
    EXIT,
    MARK,
    MARKS,
    MOST_LANES,
    GiveAnswers,
    GuestCalls,
    GuestOver,
    HostReady,
    LaunchGuest,
    Order,
    Report,
    decode_orders,
    encode,
)
from sglang.srt.inferlet.host.host_pipe import ThreadPipe
from sglang.srt.inferlet.host.residency import Residency
from sglang.srt.system.processes import when_orphaned

log = logging.getLogger("sglang.srt.inferlet")
TICK_SECONDS = 0.002
RESTS = 10  # ticks without work after which the ticker sleeps until there is some
LOOKS_A_MEMORY = 25  # ticks between two looks at the memory that is used
OPEN_FILES = 1024
PAGE = os.sysconf("SC_PAGE_SIZE")
PR_SET_NO_NEW_PRIVS = 38


class GuestHost:
    """The lanes and what runs on them.

    Args:
        directory: with the marks.
        end: of the pair of sockets to the server.
        lanes: threads that share the runs.
        memory: bytes that the process may use; past it the newest run is ended, of the tenant whose
            runs may use most.
    """

    def __init__(self, directory: Path, end: socket.socket, lanes: int, memory: int) -> None:
        self._memory, self._pipe = memory, ThreadPipe(end)
        self._reports: deque[Report] = deque()
        self._wake_read, self._wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        with (directory / MARKS).open("r+b") as file:
            self._marks = mmap(file.fileno(), MOST_LANES * MARK.size)
        self._free_marks = list(range(MOST_LANES))[::-1]
        self._shared = [self._lane() for _ in range(lanes)]
        self._alone: dict[int, tuple[GuestLane, int]] = {}  # lane and index of its mark, by run
        self._runs: dict[int, tuple[GuestLane, Residency]] = {}
        self._load = dict.fromkeys(self._shared, 0)
        self._work = threading.Event()  # a lane may have work
        threading.Thread(target=self._tick, name="ticker", daemon=True).start()

    def serve(self) -> None:
        """Move messages until the parent asks to exit, or is gone."""
        poller = select.poll()
        poller.register(self._pipe.fileno(), select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        with suppress(OSError):
            self._pipe.send(encode([HostReady(version("wasmtime"))]))
            while True:
                ready = [descriptor for descriptor, _ in poller.poll()]
                if self._pipe.fileno() in ready and not self._receive():
                    return
                if self._wake_read in ready:
                    os.read(self._wake_read, 1 << 16)
                    self._emit()

    def _receive(self) -> bool:
        """Apply the frames at hand; whether to go on."""
        frames = self._pipe.read()
        if frames is None:
            return False
        for frame in frames:
            if frame == EXIT:
                return False
            try:
                orders = decode_orders(frame)
            except msgspec.DecodeError as error:
                log.error("dropped a malformed frame of %d bytes: %s", len(frame), error)
                continue
            for order in orders:
                self._apply(order)
        return True

    def _apply(self, order: Order) -> None:
        if isinstance(order, LaunchGuest):
            self._launch(order)
        elif order.run in self._runs:
            lane, resident = self._runs[order.run]
            if isinstance(order, GiveAnswers):
                lane.put(resident, order.answers)
            else:
                lane.drop(resident)
                self._forget(order.run)
        if not self._work.is_set():
            self._work.set()

    def _launch(self, launch: LaunchGuest) -> None:
        resident = Residency(launch)
        if launch.alone:
            if not self._free_marks and not self._make_room(launch.tenant):
                message = f"{MOST_LANES} programs wait inside of their turns already"
                self._report(GuestOver(launch.run, "wait", message))
                return
            place = self._free_marks[-1]
            lane = self._lane(alone=True)
            self._alone[launch.run] = lane, place
        else:
            lane = min(self._shared, key=self._load.__getitem__)
            self._load[lane] += 1
        self._runs[launch.run] = lane, resident
        lane.put(resident)

    def _make_room(self, tenant: str) -> bool:
        """End the newest run with a lane for itself, of the tenant that has most of them, where it
        has more than this one will; whether one was ended."""
        resident = newest_of_greediest([self._runs[run][1] for run in self._alone], lambda _: 1)
        alone = Counter(self._runs[run][1].launch.tenant for run in self._alone)
        if resident is None or alone[resident.launch.tenant] <= alone[tenant] + 1:
            return False
        message = (
            f"all {MOST_LANES} threads for programs that wait inside of their turns are taken, "
            "most of them by this tenant, and another needs one; begin with `async def main(ctx)`"
        )
        self._end(*self._runs[resident.run], "wait", message)
        self._forget(resident.run)
        return True

    def _end(self, lane: GuestLane, resident: Residency, code: str, message: str) -> None:
        """End a run by no fault of its turn."""
        lane.drop(resident)
        self._report(GuestOver(resident.run, code, message))

    def _lane(self, alone: bool = False) -> GuestLane:
        place = self._free_marks.pop() * MARK.size
        return GuestLane(self._report, partial(MARK.pack_into, self._marks, place), alone)

    def _report(self, report: Report) -> None:
        """Called by any thread. Calls are sent at once; the end of a run changes what the main
        thread knows."""
        if isinstance(report, GuestCalls):
            with suppress(OSError):  # the server is gone
                self._pipe.send(encode([report]))
            return
        self._reports.append(report)
        with suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._wake, b"\0")

    def _emit(self) -> None:
        reports: list[Report] = []
        while self._reports:
            report = self._reports.popleft()
            if isinstance(report, GuestOver):
                self._forget(report.run)
            reports.append(report)
        if reports:
            self._pipe.send(encode(reports))

    def _forget(self, run: int) -> None:
        lane, _ = self._runs.pop(run, (None, None))
        if lane is None:
            return
        if run in self._alone:
            lane, place = self._alone.pop(run)
            lane.stop()
            self._free_marks.append(place)
        else:
            self._load[lane] -= 1

    def _tick(self) -> None:
        """Look at deadlines and at the memory while a lane has work; sleep while none has."""
        looks = 0
        while True:
            self._work.wait()
            self._work.clear()
            rests = 0
            while rests < RESTS:
                rests += 1
                time.sleep(TICK_SECONDS)
                for lane in self._lanes():
                    lane.look()
                    rests = rests if lane.idle else 0
                looks += 1
                if looks % LOOKS_A_MEMORY == 0 and used_bytes() > self._memory:
                    self._relieve()

    def _lanes(self) -> list[GuestLane]:
        return [*self._shared, *(lane for lane, _ in tuple(self._alone.values()))]

    def _relieve(self) -> None:
        """End a run, as the process uses more memory than it may. The main thread may forget it
        at any moment."""
        lanes = {resident: lane for lane, resident in tuple(self._runs.values())}
        found = newest_of_greediest(list(lanes), lambda resident: resident.limits.memory)
        if found is not None and not found.ended:
            message = f"the programs together use more than {self._memory} bytes of memory"
            self._end(lanes[found], found, "host_memory", message)


def newest_of_greediest(
    residents: Sequence[Residency], claim: Callable[[Residency], int]
) -> Residency | None:
    """The newest run of the tenant that claims most; None where there is none."""
    claims: Counter[str] = Counter()
    for resident in residents:
        claims[resident.launch.tenant] += claim(resident)
    newest = sorted(residents, key=lambda resident: -resident.run)
    return max(newest, key=lambda resident: claims[resident.launch.tenant], default=None)


def used_bytes() -> int:
    """Bytes of memory that this process has for itself; what it shares with others, and what guests
    have reserved but not used, does not count."""
    with open("/proc/self/statm", "rb") as file:
        resident, shared = (int(number) for number in file.read().split()[1:3])
    return (resident - shared) * PAGE


def confine() -> None:
    """Give up what the host has no use for: core files, new privileges, many files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def main(argv: list[str]) -> None:
    """``DIRECTORY PARENT LANES MEMORY SOCKET``, the last a descriptor. Ends when its parent asks
    for it or has ended."""
    directory, parent, lanes, memory, descriptor = Path(argv[0]), *map(int, argv[1:])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the parent decides when to stop
    when_orphaned(parent, lambda: os._exit(0))
    confine()
    GuestHost(directory, socket.socket(fileno=descriptor), lanes, memory).serve()
    os._exit(0)  # tearing guests down takes long, and nothing of them is to be kept


if __name__ == "__main__":
    main(sys.argv[1:])
