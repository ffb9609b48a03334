"""Run: the common state of the executors of one running program. Usage: its calls and tokens."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from typing import Any, Protocol
from weakref import WeakSet

from sglang.backend.base import Backend, checked_backend
from sglang.backend.cancel import Cancellation
from sglang.errors import Cancelled
from sglang.ir.source_location import Location
from sglang.run.api_speculation import Speculation
from sglang.run.failure import Failure
from sglang.run.recording import Recording

# The run whose program includes the current thread or task.
_INSIDE: ContextVar[Run | None] = ContextVar("inside", default=None)


class Usage:
    """Counters of a run's calls and tokens, with those of its forks.

    ``cached_tokens``: prompt tokens whose KV was cached.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, int]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def add(self, meta: Mapping[str, Any]) -> None:
        """Count one reply by its meta_info."""
        with self._lock:
            self.calls += 1
            self.prompt_tokens += int(meta.get("prompt_tokens") or 0)
            self.cached_tokens += int(meta.get("cached_tokens") or 0)
            self.completion_tokens += int(meta.get("completion_tokens") or 0)

    def merge(self, other: Usage) -> None:
        """Add the counters of ``other``."""
        with self._lock:
            for name, count in other.__getstate__().items():
                setattr(self, name, getattr(self, name) + count)

    def __repr__(self) -> str:
        return (
            f"Usage(calls={self.calls}, prompt_tokens={self.prompt_tokens}, "
            f"cached_tokens={self.cached_tokens}, completion_tokens={self.completion_tokens})"
        )


class Member(Protocol):
    """An executor of a run."""

    def wait(self) -> None:
        """Wait until all appended nodes are done, or the executor has failed and stopped."""

    async def await_end(self) -> None:
        """Wait as ``wait`` does, without occupying a thread."""

    def fail(self, error: BaseException, location: Location | None) -> None:
        """End with ``error``. Later calls have no effect."""


class Run:
    """Common state of the executors of one run.

    Members are weak references: queued or running work keeps an executor alive, and a fork that the
    program has dropped is freed when it is done. ``failures`` keeps the fork's failure.

    Args:
        loop: event loop whose tasks visit the nodes; None: threads visit the nodes.
        spec_tokens: tokens by which a call of an API model may continue past its stop.
        backend: default backend of runs inside this run.

    Attributes:
        tasks: tasks that visit nodes.
        cancelled: failure that ended the run early: the program's error, or a reader's
            cancellation.
        program: task of the program's body, if the body runs as a task.
        recording: record of the run, if requested.
        context: context variables of the program. Its tools run in copies, in any thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop | None = None,
        spec_tokens: int = 0,
        backend: Backend | None = None,
    ) -> None:
        self.loop = loop
        self.spec_tokens = spec_tokens
        self.backend = backend
        self.recording: Recording | None = None
        self.context = copy_context()
        self.usage = Usage()
        self.speculation = Speculation()
        self.cancellation = Cancellation()
        self.failures: list[Failure] = []
        self.tasks: set[asyncio.Task[None]] = set()
        self.program: asyncio.Task[None] | None = None
        self._members: WeakSet[Member] = WeakSet()
        self._inner: set[Run] = set()
        self.cancelled: Failure | None = None
        self._lock = threading.Lock()

    def enter(self, member: Member) -> Failure | None:
        """Add a member. Return the failure of a cancelled run, else None."""
        with self._lock:
            self._members.add(member)
            return self.cancelled

    def members(self) -> list[Member]:
        """Return all members that are alive."""
        with self._lock:
            return list(self._members)

    @contextmanager
    def inside(self, args: Sequence[Any] = (), arguments: Any = None) -> Iterator[None]:
        """Mark the calling thread or task as the program, which was called with these arguments.

        Only the program appends. A run that begins inside is cancelled together with this run.
        """
        outer, token = _INSIDE.get(), _INSIDE.set(self)
        self.context = copy_context()
        if outer is not None:
            outer._inner.add(self)
            if outer.cancelled is not None:  # a thread continues after its run was cancelled
                self.cancel(outer.cancelled.error)
        try:
            with self.recording.of(args, arguments) if self.recording else nullcontext():
                yield
        finally:
            _INSIDE.reset(token)
            if outer is not None:
                outer._inner.discard(self)

    def is_inside(self) -> bool:
        """Return True if the calling thread or task, or one that started it, is the program."""
        return _INSIDE.get() is self

    def spawn(self, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run ``job`` as a task of the loop, from any thread."""
        loop = self.loop
        assert loop is not None

        def start() -> None:
            task = loop.create_task(job())
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)

        if in_loop(loop):
            start()
        else:
            loop.call_soon_threadsafe(start)

    def cancel(self, error: BaseException) -> None:
        """End all present and future members, and abort the calls in flight."""
        with self._lock:
            self.cancelled = self.cancelled or Failure(error, None)
        if self.recording is not None:
            self.recording.cancelled = True
        for member in self.members():
            member.fail(error, None)
        for run in tuple(self._inner):
            run.cancel(error)
        self.cancellation.cancel()
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._cancel_tasks)

    def check(self) -> None:
        """Raise the error with which the run was cancelled, if it was."""
        if self.cancelled is not None:
            raise self.cancelled.exception()

    def finish(self) -> None:
        """Wait for all members. Raise a failure that no reader has seen.

        A failure that was raised to the program before is not raised again.
        """
        for member in self.members():
            member.wait()
        self._raise_unseen()

    async def afinish(self) -> None:
        """Finish as ``finish`` does, without occupying a thread."""
        for member in self.members():
            await member.await_end()
        self._raise_unseen()

    def _raise_unseen(self) -> None:
        # The failure of one call may cancel another, whose Cancelled may be recorded first.
        for failure in sorted(self.failures, key=lambda one: isinstance(one.error, Cancelled)):
            if not failure.seen:
                raise failure.exception()

    def _cancel_tasks(self) -> None:
        for task in tuple(self.tasks):
            coroutine: Any = task.get_coro()
            # A task that has not begun is not cancelled, because it must wake the readers.
            if inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED:
                task.cancel()


def current_run() -> Run | None:
    """Return the run whose program includes the calling thread or task, None outside of runs."""
    return _INSIDE.get()


def resolve_backend(backend: Any) -> Backend:
    """Return the given backend; else the backend of the calling program; else the default.

    Raise ValueError if there is none, TypeError for a value that is not a backend.
    """
    if backend is None and (outer := current_run()) is not None:
        backend = outer.backend
    return checked_backend(backend)


def in_loop(loop: asyncio.AbstractEventLoop) -> bool:
    """Return True if the calling thread is running ``loop``."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
