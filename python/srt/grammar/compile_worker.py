"""Program of a compile process: plans one constraint after another; may be killed at any time.

    python -m sglang.srt.grammar.compile_worker [--planner MODULE:FUNCTION]
        [--seconds S] [--patience S]

A frame is a length (4 bytes, little-endian) and that many bytes. The worker first writes an empty
frame, to report that it is ready. A frame to the worker is a MessagePack list (constraint, backend,
whitespace). The worker answers with an empty frame when it begins, then with the CompilePlan.

The worker ends when its input or its parent ends. Two kernel timers end the worker during a plan:
SIGPROF if the plan exceeds its processor time, which is the constraint's fault; SIGALRM long after
the parent's patience, because native code may block the thread that watches the parent.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence

import msgspec
from sglang.ir.constraint import Constraint
from sglang.srt.grammar.compile_plan import CompilePlan
from sglang.srt.system.processes import when_orphaned

Planner = Callable[[Constraint, str, str], CompilePlan]

PLANNER = "sglang.srt.grammar.compile_plan:make_plan"
MAX_FRAME = 4 << 20  # bytes of a constraint
MAX_PLAN = 128 << 20  # bytes of a plan
MEMORY = 1 << 30  # limit of the address space for constraints, in bytes
KEPT = 256 << 20  # bytes of memory that may remain in use after plans; with more the worker ends
STACK = 4 << 20  # bytes; deep recursion ends the worker, before it could end the engine
ALARM = 2  # multiple of the parent's patience after which the worker ends itself


class PlanRequest(msgspec.Struct, frozen=True, array_like=True):
    """The parent's request: a constraint, and the settings to plan it with."""

    constraint: Constraint
    backend: str
    whitespace: str


class Frames:
    """The worker's end of the two pipes."""

    def __init__(self, source: int, sink: int) -> None:
        self._source = source
        self._sink = sink

    def read(self) -> bytes | None:
        """Return the next frame, or None at the end of the input or for a frame too long."""
        head = self._take(4)
        size = int.from_bytes(head or b"", "little")
        return self._take(size) if head is not None and size <= MAX_FRAME else None

    def write(self, frame: bytes) -> None:
        """Write a frame. Raises OSError if the parent has closed the pipe."""
        left = memoryview(len(frame).to_bytes(4, "little") + frame)
        while left:
            left = left[os.write(self._sink, left) :]

    def _take(self, size: int) -> bytes | None:
        out = bytearray()
        while len(out) < size:
            data = os.read(self._source, size - len(out))
            if not data:
                return None
            out += data
        return bytes(out)


def serve(frames: Frames, planner: Planner, seconds: float, patience: float) -> None:
    """Answer requests until the input ends, or until memory has grown by more than KEPT bytes.

    Args:
        seconds: limit of the processor time of a plan.
        patience: seconds that the parent waits for a plan.
    """
    base = memory()[1]
    frames.write(b"")
    while memory()[1] < base + KEPT and (frame := frames.read()) is not None:
        frames.write(b"")
        signal.setitimer(signal.ITIMER_REAL, patience * ALARM)
        signal.setitimer(signal.ITIMER_PROF, seconds)
        answer = msgspec.msgpack.encode(plan(planner, frame))
        signal.setitimer(signal.ITIMER_PROF, 0)
        if len(answer) > MAX_PLAN:
            answer = msgspec.msgpack.encode(
                CompilePlan(
                    error=f"compiled, the constraint has {len(answer)} bytes; at most {MAX_PLAN}."
                )
            )
        frames.write(answer)
        signal.setitimer(signal.ITIMER_REAL, 0)


def plan(planner: Planner, frame: bytes) -> CompilePlan:
    """Return the planner's plan for a request. An exception becomes a plan with an error."""
    try:
        request = msgspec.msgpack.decode(frame, type=PlanRequest)
        return planner(request.constraint, request.backend, request.whitespace)
    except MemoryError:
        return CompilePlan(error="the constraint takes too much memory to compile; simplify it.")
    except RecursionError:
        return CompilePlan(error="the constraint is nested too deeply; flatten it.")
    except Exception as error:
        return CompilePlan(
            error=f"the constraint cannot be compiled: {type(error).__name__}: {error}"
        )


def memory() -> tuple[int, int]:
    """Return the bytes of address space and of resident memory; zeros without /proc."""
    try:
        with open("/proc/self/statm") as file:
            pages = file.read().split()
        return int(pages[0]) * os.sysconf("SC_PAGE_SIZE"), int(pages[1]) * os.sysconf(
            "SC_PAGE_SIZE"
        )
    except (OSError, ValueError, IndexError):
        return 0, 0


def limit(size: int) -> None:
    """Limit address space to ``size`` bytes more than now, the stack to STACK; no core files."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    most = STACK if hard == resource.RLIM_INFINITY else min(STACK, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (most, hard))
    used = memory()[0]
    if used:
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        most = used + size if hard == resource.RLIM_INFINITY else min(used + size, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def pipes() -> tuple[int, int]:
    """Return descriptors of standard input and output for frames, and redirect both to null."""
    source, sink = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)
    return source, sink


def load(name: str) -> Planner:
    """Load the function ``module:function`` and call its module's ``warm()``, if defined."""
    module, _, function = name.partition(":")
    loaded = importlib.import_module(module)
    getattr(loaded, "warm", lambda: None)()
    planner: Planner = getattr(loaded, function)
    return planner


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="sglang.srt.grammar.compile_worker", description=__doc__)
    parser.add_argument("--planner", default=PLANNER)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--patience", type=float, default=20.0)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # the parent handles a closed terminal
    when_orphaned(os.getppid(), lambda: os._exit(0))
    frames = Frames(*pipes())
    planner = load(options.planner)
    limit(MEMORY)
    with contextlib.suppress(OSError):
        serve(frames, planner, options.seconds, options.patience)


if __name__ == "__main__":
    main(sys.argv[1:])
