"""GuestLane: one thread of the host, its engine, and the guests that it runs, one turn at a time.

A guest stays on its lane. Between turns nothing of it is alive but its memory. The tenants of a
lane take turns. A guest that waits inside of a turn (``wait``) has a lane for itself, whose thread
it holds.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from sglang.srt.inferlet.host.deadline import Deadline
from sglang.srt.inferlet.host.guest_engine import FATAL, GuestTrap, make_engine, reason, shut_linker
from sglang.srt.inferlet.host.guests import ComponentGuest, ModuleGuest, RunningGuest, make_store
from sglang.srt.inferlet.host.host_messages import GuestCalls, GuestOver, Report
from sglang.srt.inferlet.host.residency import (
    LimitExceeded,
    Residency,
    check_answers,
    check_calls,
)
from sglang.srt.inferlet.host.turn_queue import TurnQueue
from wasmtime import Module, Store, WasmtimeError
from wasmtime.component import Component, Linker

ABORTED = "`unreachable`"  # in the text of such a trap
MOST_PROGRAMS = 64  # kept loaded by a lane


class Loaded(NamedTuple):
    """A program in a lane's engine: a component and its linker, or a module."""

    component: Component | None
    linker: Linker | None
    module: Module | None


class Job(NamedTuple):
    """A turn to run. ``answers``: None at the start of the run."""

    resident: Residency
    answers: str | None


class GuestLane:
    """``report`` is called by the lane's thread. ``mark``: is called with the run that it works on,
    0 for none. ``alone``: for one run, which may wait."""

    def __init__(
        self, report: Callable[[Report], None], mark: Callable[[int], None], alone: bool = False
    ) -> None:
        self._report, self._alone = report, alone
        self._own_mark, self._marking, self._stopped = mark, threading.Lock(), False
        self._jobs: TurnQueue[Job] = TurnQueue()
        self._programs: OrderedDict[str, Loaded] = OrderedDict()
        self._current: Residency | None = None
        self._given = self._done = 0  # jobs; the caller's thread writes one, the lane's the other
        self.engine = make_engine()
        self.deadline: Deadline | None = None
        self._thread = threading.Thread(target=self._serve, name="lane", daemon=True)
        self._thread.start()

    def put(self, resident: Residency, answers: str | None = None) -> None:
        """Queue a turn of a run; the first one where there are no answers."""
        self._given += 1
        self._jobs.put(resident.launch.tenant, Job(resident, answers))

    def drop(self, resident: Residency) -> None:
        """End a run, also inside of a turn. An ended run's jobs do nothing but free its memory."""
        resident.ended = True
        if self.deadline is not None:
            self.deadline.expire(resident.run)
        self.put(resident, "")

    def stop(self) -> None:
        """End the thread after the jobs that it has. Its mark is free: another lane may have it."""
        with self._marking:
            self._own_mark(0)
            self._stopped = True
        self._jobs.close()

    def _mark(self, run: int) -> None:
        with self._marking:
            if not self._stopped:
                self._own_mark(run)

    @property
    def idle(self) -> bool:
        """Whether the lane has no job."""
        return self._given == self._done

    def look(self) -> None:
        """Interrupt the guest whose time is up; called by the ticker."""
        if self.deadline is not None:
            self.deadline.look()

    def _serve(self) -> None:
        self.deadline = Deadline(self.engine)
        while (job := self._jobs.get()) is not None:
            resident, answers = job
            self._current = resident
            self._mark(resident.run)
            try:
                if not resident.ended:
                    self._start(resident) if answers is None else self._turn(resident, answers)
            except LimitExceeded as error:
                self._fail(resident, error.code, str(error))
            except (GuestTrap, MemoryError, RecursionError, WasmtimeError) as error:
                self._fail(resident, *self._cause(resident, error))
            finally:
                self._current = None
                self._mark(0)
            if resident.ended:
                self._free(resident)
            self._done += 1

    def _start(self, resident: Residency) -> None:
        launch = resident.launch
        loaded = self._load(launch.guest.path, launch.guest.component)
        store = make_store(self.engine, launch.limits)

        def first() -> str:
            """Instantiation is inside of the turn: a module may have a start function."""
            resident.guest = guest = _instantiated(loaded, store, launch.limits.calls_bytes)
            return guest.start(launch.guest.source, launch.guest.arguments)

        self._step(resident, first)
        while resident.rebuilding and not resident.ended:
            self._turn(resident, launch.log[resident.logged].answers)

    def _turn(self, resident: Residency, answers: str) -> None:
        guest = resident.guest
        if guest is None:
            return
        check_answers(answers, resident.limits)
        guest.store.set_epoch_deadline(1)
        self._step(resident, lambda: guest.turn(answers))

    def _step(self, resident: Residency, step: Callable[[], str]) -> None:
        """Run a turn and report its calls. Raises what ends the run."""
        self._enter(resident)
        try:
            calls = step()
        except OverflowError as error:
            most = resident.limits.calls_bytes
            raise LimitExceeded(
                "calls_bytes", f"the calls of a turn have {error} bytes; calls_bytes is {most}"
            ) from None
        finally:
            self._leave(resident)
        self._tell(resident, calls)

    def _enter(self, resident: Residency) -> None:
        deadline = self.deadline
        assert deadline is not None
        seconds = resident.begins()
        resident.entered = deadline.now()
        deadline.begin(resident.run, resident.entered + seconds)
        if resident.ended:  # before there was a deadline that ``drop`` could let pass
            deadline.end()
            raise LimitExceeded("killed", "the run was ended")

    def _leave(self, resident: Residency) -> None:
        """Count the processor time since ``_enter``."""
        assert self.deadline is not None
        self.deadline.end()
        now = self.deadline.now()
        resident.used += now - resident.entered
        resident.entered = now

    def _tell(self, resident: Residency, calls: str, waits: bool = False) -> None:
        check_calls(calls, resident.limits)
        if resident.rebuilding:
            resident.take_log(calls)
        else:
            self._report(GuestCalls(resident.run, calls, resident.untold(), waits))

    def _cause(self, resident: Residency, error: Exception) -> tuple[str, str]:
        """Code and message for a guest that has trapped."""
        limits = resident.limits
        if resident.failed is not None:  # inside of ``wait``, where nothing may be raised
            return resident.failed.code, str(resident.failed)
        if resident.asked_to_wait:
            return "wait", "the program waits inside of a turn; it needs a thread of its own"
        if self.deadline is not None and self.deadline.passed:
            if resident.used >= limits.total_cpu:
                return "total_cpu", resident.spent()
            return "turn_cpu", (
                f"a turn has used {resident.used:.3f} s of processor time; turn_cpu is "
                f"{limits.turn_cpu:g} s; split the work by awaiting something between its parts"
            )
        cause = str(error) if isinstance(error, GuestTrap) else reason(error)
        if cause == FATAL:
            return "memory", (
                "the interpreter has ended by a fatal error, as it does where no memory is left; "
                f"memory is {limits.memory} bytes"
            )
        if ABORTED in cause and resident.launch.guest.component:
            cause += (
                "; an interpreter aborts where no memory is left, and memory is "
                f"{limits.memory} bytes"
            )
        return "trap", cause

    def _fail(self, resident: Residency, code: str, message: str) -> None:
        resident.ended = True
        self._report(GuestOver(resident.run, code, message, resident.untold()))

    def _free(self, resident: Residency) -> None:
        guest, resident.guest = resident.guest, None
        if guest is not None:
            guest.store.close()

    def _load(self, path: str, is_component: bool) -> Loaded:
        loaded = self._programs.get(path)
        if loaded is None:
            if is_component:
                component = Component.deserialize_file(self.engine, path)
                linker = shut_linker(self.engine, component, self._random, self._wait)
                loaded = Loaded(component, linker, None)
            else:
                loaded = Loaded(None, None, Module.deserialize_file(self.engine, path))
            self._programs[path] = loaded
            if len(self._programs) > MOST_PROGRAMS:
                self._programs.popitem(last=False)
        self._programs.move_to_end(path)
        return loaded

    def _random(self, count: int) -> bytes:
        assert self._current is not None
        return self._current.entropy.take(count)

    def _wait(self, calls: str) -> str:
        """Answers to the calls of a guest that stays inside of its turn.

        Raises WasmtimeError alone: wasmtime-py hands any other exception to whichever thread leaves
        a guest next.
        """
        resident = self._current
        assert resident is not None
        if not self._alone:
            resident.asked_to_wait = True
            raise WasmtimeError("wait")
        try:
            self._leave(resident)
            self._tell(resident, calls, waits=True)
            answers = self._answers(resident)
            check_answers(answers, resident.limits)
            self._enter(resident)
        except LimitExceeded as error:
            resident.failed = error
            raise WasmtimeError(error.code) from None
        return answers

    def _answers(self, resident: Residency) -> str:
        if resident.rebuilding:
            return resident.launch.log[resident.logged].answers
        self._done += 1  # the job before this one
        self._mark(0)
        job = self._jobs.get()
        self._mark(resident.run)
        if job is None or resident.ended:
            raise LimitExceeded("killed", "the run was ended")
        return job.answers or ""


def _instantiated(loaded: Loaded, store: Store, most: int) -> RunningGuest:
    if loaded.component is None:
        assert loaded.module is not None
        return ModuleGuest(store, loaded.module, most)
    assert loaded.linker is not None
    return ComponentGuest(store, loaded.linker, loaded.component)
