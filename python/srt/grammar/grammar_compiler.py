"""GrammarCompiler: compiles constraints beside the engine loop, with limits of time and memory.

A constraint that takes too much processor time or memory is refused, and the refusal is remembered
for a while. A machine that is late, or that loses a process, is no fault of the constraint: the
request fails as one that may be tried again, and nothing is remembered.

Each of a few threads has a child process that plans (``compile_process``) and may be killed. The
thread then builds the grammar with the vocabulary. Equal constraints are compiled once.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import signal
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace

from sglang.ir.constraint import Constraint
from sglang.srt.config import GrammarConfig
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar import compile_worker
from sglang.srt.grammar.compile_plan import CompilePlan, build_grammar, warm_vocabulary
from sglang.srt.grammar.compile_process import PlanProcess, ProcessDied
from sglang.srt.grammar.compile_worker import PLANNER, PlanRequest
from sglang.srt.grammar.grammar_cache import FailureCache, GrammarCache
from sglang.srt.grammar.grammar_protocol import CompiledGrammar, CompilerBusy, GrammarError

WITH_WHITESPACE = ("json_schema", "structural_tag", "ebnf")  # all that may hold a schema
CLOSE_SECONDS = 5.0  # for grammars that are being built
CLOSED = "the compiler is closed."
AGAIN = "Try again."
# Signals that a constraint can cause: a crash, or too much processor time. Any other signal was
# sent by another process.
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE,
          signal.SIGPROF)  # fmt: skip
STACK = 4 * compile_worker.STACK  # bytes: enough to build whatever a child has planned

Waiter = Future[CompiledGrammar]
_open: weakref.WeakSet[GrammarCompiler] = weakref.WeakSet()


class GrammarCompiler:
    """Used from any thread. Starts nothing before ``warm`` or the first ``submit``.

    Args:
        vocabulary: called once, in a thread of the compiler.
        config: backend, whitespace and masks.
        workers: constraints compiled at once.
        seconds: of processor time that a plan may take; more is the constraint's fault.
        patience: seconds that a plan is waited for; longer is the machine's.
        planner: "module:function" that the children run.

    Attributes:
        compiled: grammars made.
        hits: submitted constraints that were in the cache or in flight.
        failures: submitted constraints that were answered with an error.
        killed: children killed because they were late, or took too much processor time.
    """

    def __init__(
        self,
        vocabulary: Callable[[], Vocabulary],
        config: GrammarConfig,
        *,
        workers: int = 2,
        seconds: float = 2.0,
        patience: float = 20.0,
        planner: str = PLANNER,
    ) -> None:
        self.config = config
        self.seconds = seconds
        self.patience = patience
        self.compiled = 0
        self.hits = 0
        self.failures = 0
        self.killed = 0
        self._vocabulary = Once(vocabulary)
        self._lock = threading.Lock()  # guards all below, and the counters
        self._cache = GrammarCache()
        self._failed = FailureCache()
        self._flights: dict[Constraint, list[Waiter]] = {}
        self._jobs: queue.SimpleQueue[Constraint | None] = queue.SimpleQueue()
        self._processes = [PlanProcess(planner, seconds, patience) for _ in range(workers)]
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, constraint: Constraint) -> Waiter:
        """A future of the grammar. It fails with GrammarError, or with CompilerBusy where the
        constraint is not at fault. Cancelling it affects no other waiter; a constraint without
        waiters is not begun."""
        waiter: Waiter = Future()
        try:
            key = self._key(constraint)
        except GrammarError as error:
            with self._lock:
                self.failures += 1
            waiter.set_exception(error)
            return waiter
        with self._lock:
            grammar = self._cache.get(key)
            known = self._failed.get(key)
            refusal: Exception | None = GrammarError(known) if known is not None else None
            if self._closed:
                refusal = CompilerBusy(CLOSED)
            if grammar is None and refusal is None:
                self._join(key, waiter)
                return waiter
            self.hits += grammar is not None
            self.failures += grammar is None
        _settle([waiter], grammar, refusal)
        return waiter

    def warm(self) -> None:
        """Start the children and make the vocabulary, in the background."""
        with self._lock:
            self._start()

    def close(self) -> None:
        """End the children and the threads. Pending futures get a CompilerBusy."""
        with self._lock:
            self._closed = True
            threads, self._threads = self._threads, []
        for process in self._processes:
            process.close()
        for _ in threads:
            self._jobs.put(None)
        deadline = time.monotonic() + CLOSE_SECONDS
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        with self._lock:
            waiters = [waiter for flight in self._flights.values() for waiter in flight]
            self._flights.clear()
            self.failures += len(waiters)
        _settle(waiters, None, CompilerBusy(CLOSED))

    @property
    def counts(self) -> dict[str, int]:
        """The counters, by the names of the engine's statistics."""
        return {
            "grammars_compiled": self.compiled,
            "grammar_hits": self.hits,
            "grammar_failures": self.failures,
            "grammar_kills": self.killed,
        }

    @property
    def pending(self) -> int:
        """Number of constraints in flight or waiting for a thread."""
        return len(self._flights)

    @property
    def pids(self) -> list[int]:
        """Process ids of the running children."""
        return [pid for process in self._processes if (pid := process.pid) is not None]

    # -- the caller's side, under the lock -------------------------------------------------------

    def _key(self, constraint: Constraint) -> Constraint:
        """The constraint with its effective whitespace, as the cache's key."""
        space: str | None = None
        try:
            constraint.verify()
            if constraint.kind in WITH_WHITESPACE:
                space = constraint.whitespace
                if space is None:
                    space = self.config.json_whitespace()
                replace(constraint, whitespace=space).verify()
                space.encode()
        except UnicodeEncodeError:
            raise GrammarError("whitespace holds a lone surrogate.") from None
        except ValueError as error:
            raise GrammarError(str(error)) from None
        return Constraint(constraint.kind, constraint.text, space)

    def _join(self, key: Constraint, waiter: Waiter) -> None:
        if key in self._flights:
            self.hits += 1
            self._flights[key].append(waiter)
            return
        self._start()
        self._flights[key] = [waiter]
        self._jobs.put(key)

    def _start(self) -> None:
        if self._threads or self._closed:
            return
        _open.add(self)
        before = threading.stack_size(STACK)
        try:
            for number, process in enumerate(self._processes):
                thread = threading.Thread(
                    target=self._work, args=(process,), name=f"srt-compile-{number}", daemon=True
                )
                thread.start()
                self._threads.append(thread)
        finally:
            threading.stack_size(before)

    # -- a worker's side -------------------------------------------------------------------------

    def _work(self, process: PlanProcess) -> None:
        try:
            _start_quietly(process)
            self._vocabulary.warm()
            while (key := self._jobs.get()) is not None:
                with self._lock:
                    wanted = any(not waiter.cancelled() for waiter in self._flights.get(key, ()))
                    if not wanted:
                        self._flights.pop(key, None)
                if wanted:
                    self._compile(key, process)
                    _start_quietly(process)
        finally:
            process.close()
            process.kill()

    def _compile(self, key: Constraint, process: PlanProcess) -> None:
        grammar: CompiledGrammar | None = None
        error: Exception | None = None
        try:
            grammar = self._grammar(key, process)
        except (GrammarError, CompilerBusy) as failure:
            error = failure
        except OSError as failure:  # no process can be started
            error = CompilerBusy(f"{key.kind} cannot be compiled now: {failure}. {AGAIN}")
        except BaseException as failure:  # a library in Rust that panics raises no Exception
            name = type(failure).__name__
            error = GrammarError(f"{key.kind} cannot be compiled: {name}: {failure}")
        with self._lock:
            waiters = self._flights.pop(key, [])
            if grammar is not None:
                self.compiled += 1
                self._cache.put(key, grammar)
            else:
                self.failures += len(waiters)
                if isinstance(error, GrammarError):
                    self._failed.put(key, str(error))
        _settle(waiters, grammar, error)

    def _grammar(self, key: Constraint, process: PlanProcess) -> CompiledGrammar:
        plan = self._plan(key, process)
        if plan.error:
            raise GrammarError(plan.error)
        return build_grammar(plan, self._vocabulary.get(), canonical=self.config.jumps != "string")

    def _plan(self, key: Constraint, process: PlanProcess) -> CompilePlan:
        """Compile a constraint in a process. Raises GrammarError where the constraint is at fault,
        else CompilerBusy or OSError."""
        request = PlanRequest(key, self.config.grammar_backend, key.whitespace or "")
        try:
            try:
                return process.plan(request)
            except ProcessDied as death:
                if self._closed or (death.begun and _guilty(death)):
                    raise
                process.kill()
                return process.plan(request)  # something else has ended it, or stopped it
        except TimeoutError:
            with self._lock:
                self.killed += 1
            process.give_up()
            raise CompilerBusy(
                f"{key.kind} was not compiled within {self.patience:g} s, of which it had less "
                f"than {self.seconds:g} s of processor time: the machine is busy. {AGAIN}"
            ) from None
        except ProcessDied as death:
            process.kill()
            raise self._verdict(key, death) from None

    def _verdict(self, key: Constraint, death: ProcessDied) -> GrammarError | CompilerBusy:
        """The error for a child that has ended: the constraint's fault, or the machine's."""
        if self._closed:
            return CompilerBusy(CLOSED)
        if death.code == -signal.SIGPROF:
            with self._lock:
                self.killed += 1
            return GrammarError(
                f"{key.kind} takes more than {self.seconds:g} s of processor time to compile; "
                "simplify it."
            )
        why = f"status {death.code}"
        if death.code < 0:
            why = signal.Signals(-death.code).name
        if not death.begun:
            return CompilerBusy(f"the compile process does not start: it ends with {why}. {AGAIN}")
        if _guilty(death):
            return GrammarError(
                f"{key.kind} ends the compile process ({why}): too large or too deep; simplify it."
            )
        return CompilerBusy(f"the compile process was lost ({why}). {AGAIN}")


def _guilty(death: ProcessDied) -> bool:
    """Whether a child that had begun was ended by its constraint."""
    return death.code >= 0 or -death.code in FAULTS


class Once:
    """A callable's value, made at the first call. A failure is kept, too."""

    def __init__(self, make: Callable[[], Vocabulary]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: Vocabulary | None = None
        self._error = ""

    def get(self) -> Vocabulary:
        """The value. Raises GrammarError where it could not be made."""
        with self._lock:
            if self._value is None and not self._error:
                try:
                    self._value = self._make()
                except Exception as error:
                    self._error = f"the tokenizer has no vocabulary for constraints: {error!r}"
            if self._value is None:
                raise GrammarError(self._error)
            return self._value

    def warm(self) -> None:
        """Make it now, and the tables that grammars share; ``get`` raises the failure, if any."""
        with contextlib.suppress(BaseException):
            warm_vocabulary(self.get())


def _start_quietly(process: PlanProcess) -> None:
    """Start a child. Where that fails, the next constraint gets the error."""
    with contextlib.suppress(Exception):
        process.start()


def _settle(
    waiters: list[Waiter], grammar: CompiledGrammar | None, error: Exception | None
) -> None:
    """Give each waiter the grammar, or an exception of its own: threads raise it separately."""
    for waiter in waiters:
        if not waiter.set_running_or_notify_cancel():
            continue
        if grammar is not None:
            waiter.set_result(grammar)
        else:
            assert error is not None
            waiter.set_exception(type(error)(*error.args))


@atexit.register
def _close_all() -> None:
    for compiler in list(_open):
        compiler.close()
