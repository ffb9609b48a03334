"""Tracing: requests for recordings of runs, by the context ``tracing`` or by ``trace=``."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from sglang.backend.base import Backend, Call
from sglang.ir.source_location import Location
from sglang.run.recording import RecordedCall, Recording, told
from sglang.run.run_scope import current_run
from sglang.run.stream import Stream
from sglang.run.trace_record import TraceRecord
from sglang.views.prices import checked_prices
from sglang.views.timeline.trace import Trace
from sglang.views.timeline.trace_formats import format_of, save

# The requested trace, or None, and the file for it, written at the end.
Opened: TypeAlias = tuple[TraceRecord | None, str | None]
NO_TRACE: Opened = (None, None)

# Traces of the ``tracing`` blocks that are open, the innermost last.
ACTIVE: list[Trace] = []
# Trace of the ``tracing`` around the current thread or task. Others may be open at the same time.
AROUND: ContextVar[Trace | None] = ContextVar("around", default=None)


@contextmanager
def tracing(
    to: str | os.PathLike[str] | Trace | None = None,
    *,
    prices: Mapping[str, float] | None = None,
    otel: Any = None,
) -> Iterator[Trace]:
    """Record every program that begins inside the context, in any thread. Yields the trace.

    ``to``: a file for the trace, written at the end (.html or .json), or a trace to extend.
    ``prices``: dollars per million tokens, by "input", "cached" and "output". ``otel``: URL of a
    collector, or a span processor, for an export at the end; runtimes then add their own spans.

    Raises ValueError and OSError, before anything runs, if the file cannot be written.
    """
    found, path = opened(True if to is None else to)
    if not isinstance(found, Trace):
        raise TypeError(f"tracing is given {to!r}; give a file's name, a Trace, or nothing")
    trace = found
    if prices is not None:
        trace.prices = checked_prices(prices)
    trace.otel = otel
    outer = AROUND.get()
    ACTIVE.append(trace)
    AROUND.set(trace)
    try:
        yield trace
    except BaseException as error:
        _leave(trace, outer)
        finish(trace, path, error)
        raise
    _leave(trace, outer)
    finish(trace, path, None)


def _leave(trace: Trace, outer: Trace | None) -> None:
    ACTIVE.remove(trace)
    AROUND.set(outer)  # no token, because ``tracing`` may have been entered in another context


def opened(to: Any) -> Opened:
    """Return the trace and file that ``trace=`` of a run requests.

    Raise TypeError, ValueError for a file's name, and OSError if the file cannot be written.
    """
    if to is None or to is False:
        return NO_TRACE
    if to is True:
        return Trace(), None
    if isinstance(to, Trace):
        return to, None
    if not isinstance(to, (str, os.PathLike)):
        raise TypeError(f"trace is {to!r:.60}; give a file's name, True or a Trace")
    format_of(to)
    return Trace(), str(writable(to))


def writable(to: str | os.PathLike[str]) -> Path:
    """Return ``to`` as an absolute path, because a program may change its directory. Raises OSError
    before anything runs if the file cannot be written."""
    path = Path(to).absolute()
    folder, problem = path.parent, ""
    if not folder.is_dir():
        problem = f"there is no folder {folder}"
    elif path.is_dir():
        problem = "it is a folder; give a file's name"
    elif not os.access(path if path.exists() else folder, os.W_OK):
        problem = f"this user may not write to {path if path.exists() else folder}"
    if problem:
        raise OSError(f"{os.fspath(to)!r} cannot be written: {problem}")
    return path


def ambient() -> TraceRecord | None:
    """Return the trace of a run that begins here without a ``trace=``.

    The trace is that of the run around it, else of the ``tracing`` around it, else, in a thread
    without one, of the latest ``tracing``.
    """
    run = current_run()
    if run is not None and run.recording is not None:
        return run.recording.trace
    around = AROUND.get()
    if around is not None and around in ACTIVE:
        return around
    latest = ACTIVE[-1:]  # a slice, as another thread may remove its trace meanwhile
    return latest[0] if latest else None


def recording_of(name: str, to: Opened, inline: bool) -> Recording | None:
    """Return the recording of a run that begins now, None if none is requested."""
    trace, path = to
    if trace is None and (trace := ambient()) is None:
        return None
    run = current_run()
    outer = run.recording if run is not None else None
    on_end = None if path is None else partial(write, trace, path)
    return Recording(trace, name, outer, on_end, inline)


@contextmanager
def recorded_alone(
    name: str, trace: TraceRecord, backend: Backend, call: Call
) -> Iterator[RecordedCall]:
    """Record a call outside of programs, made inside the context; see ``Visit.asking``."""
    recording = Recording(trace, name, inline=True)
    with (
        recording.of((), None),
        recording.track.visit((), Location("", 0), Stream()) as visit,
        visit.asking(backend, call) as asked,
    ):
        yield asked


def write(trace: TraceRecord, path: str) -> None:
    """Save a trace. An error becomes a warning, so that results of programs are not lost."""
    try:
        save(trace, path)
    except Exception as problem:
        warnings.warn(f"the trace was not written: {told(problem)}", RuntimeWarning, stacklevel=2)


def finish(trace: Trace, path: str | None, error: BaseException | None) -> None:
    """Write and send a trace. After an ``error``, a failure to send becomes a warning."""
    if path is not None:
        write(trace, path)
    if trace.otel is None:
        return
    try:
        trace.export_otel(trace.otel)
    except Exception as problem:
        if error is None:
            raise
        warnings.warn(f"the trace was not sent: {problem}", RuntimeWarning, stacklevel=2)
