"""Tracing: how it is said that programs are to be recorded, and where their trace goes."""

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

# A trace, if there is to be one, and the file that it is written to at the end.
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
    """Record every program that begins while inside, in whatever thread, and give the trace.

    ``to``: a file that it is written to at the end (.html, or .json), or a trace to add to.
    ``prices``: dollars per million tokens, by "input", "cached" and "output". ``otel``: the URL of
    a collector, or a span processor, that it is sent to; a runtime's own spans then belong to it.

    Raises ValueError and OSError, before anything runs, where it could not be written.
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
    AROUND.set(outer)  # no token: it may have been entered in another context


def opened(to: Any) -> Opened:
    """Return the trace and file that ``trace=`` of a run requests.

    Raise TypeError, ValueError for a file's name, and OSError where it cannot be written.
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
    """``to``, which a program may go to another folder before. Raises OSError where it could not be
    written: that is to be known before anything runs."""
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
    latest = ACTIVE[-1:]  # another thread may leave its own meanwhile
    return latest[0] if latest else None


def recording_of(name: str, to: Opened, inline: bool) -> Recording | None:
    """Return the recording of a run that begins now, None where none is requested."""
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
    """Record a call that belongs to no program, made while inside; see ``Visit.asking``."""
    recording = Recording(trace, name, inline=True)
    with (
        recording.of((), None),
        recording.track.visit((), Location("", 0), Stream()) as visit,
        visit.asking(backend, call) as asked,
    ):
        yield asked


def write(trace: TraceRecord, path: str) -> None:
    """Save a trace. An error becomes a warning: the recorded results count more."""
    try:
        save(trace, path)
    except Exception as problem:
        warnings.warn(f"the trace was not written: {told(problem)}", RuntimeWarning, stacklevel=2)


def finish(trace: Trace, path: str | None, error: BaseException | None) -> None:
    """Write and send it. After ``error``, which counts more, what cannot be sent is a warning."""
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
