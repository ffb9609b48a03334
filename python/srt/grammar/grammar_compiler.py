"""GrammarCompiler: compiles constraints beside the engine loop, with limits of time and memory.

A constraint that takes too much processor time or memory is refused, and the refusal is cached for
some time. If the machine is busy, or a compile process is lost, the request fails with CompilerBusy
and may be tried again; that error is not cached.

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

WITH_WHITESPACE = ("json_schema", "structural_tag", "ebnf")  # kinds that may contain a schema
CLOSE_SECONDS = 5.0  # grace period at ``close`` for grammars that are being built
CLOSED = "the compiler is closed."
AGAIN = "Try again."
# Signals that a constraint can cause: a crash, or too much processor time. Any other signal was
# sent by another process.
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE,
          signal.SIGPROF)  # fmt: skip
STACK = 4 * compile_worker.STACK  # bytes: enough to build any plan of a child

Waiter = Future[CompiledGrammar]
_open: weakref.WeakSet[GrammarCompiler] = weakref.WeakSet()


class GrammarCompiler:
    """Thread-safe. Starts no thread or process before ``warm`` or the first ``submit``.

    Args:
        vocabulary: called once, in a thread of the compiler.
        config: backend, whitespace and masks.
        workers: number of constraints compiled in parallel.
        seconds: limit of a plan's processor time; beyond it the constraint is refused.
        patience: limit of the wait for a plan in seconds; beyond it the machine is busy.
        planner: "module:function" that the children run.

    Attributes:
        compiled: number of compiled grammars.
        hits: number of submitted constraints that were cached or in flight.
        failures: number of submitted constraints that failed with an error.
        killed: number of children killed for being late or for too much processor time.
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
        self._lock = threading.Lock()  # guards the counters and all attributes below
        self._cache = GrammarCache()
        self._failed = FailureCache()
        self._flights: dict[Constraint, list[Waiter]] = {}
        self._jobs: queue.SimpleQueue[Constraint | None] = queue.SimpleQueue()
        self._processes = [PlanProcess(planner, seconds, patience) for _ in range(workers)]
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(self, constraint: Constraint) -> Waiter:
        """Return a future of the grammar. The future fails with GrammarError, or with CompilerBusy
        if the constraint is not at fault. Cancelling a future does not affect other futures of the
        constraint; without any, compilation is not begun."""
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
        """Counters, by their names in the engine's statistics."""
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
        """Return the cache key: the constraint with its whitespace. Raises GrammarError."""
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
        except BaseException as failure:  # a panic of a Rust library is not an Exception
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
        """Plan a constraint in a child. Raises GrammarError if the constraint is at fault, else
        CompilerBusy or OSError."""
        request = PlanRequest(key, self.config.grammar_backend, key.whitespace or "")
        try:
            try:
                return process.plan(request)
            except ProcessDied as death:
                if self._closed or (death.begun and _guilty(death)):
                    raise
                process.kill()
                return process.plan(request)  # once more: the constraint did not end the child
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
        """Return the error for a child that has ended: GrammarError if the constraint's fault."""
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
    """Return True if the constraint is the cause of a child's end during a plan."""
    return death.code >= 0 or -death.code in FAULTS


class Once:
    """Cache of the value of a callable, which is called once. A failure is cached, too."""

    def __init__(self, make: Callable[[], Vocabulary]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._value: Vocabulary | None = None
        self._error = ""

    def get(self) -> Vocabulary:
        """Return the value. Raises GrammarError if the callable failed."""
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
        """Make the vocabulary and its shared tables now. A failure is raised later, by ``get``."""
        with contextlib.suppress(BaseException):
            warm_vocabulary(self.get())


def _start_quietly(process: PlanProcess) -> None:
    """Start a child. A failure is ignored, because the next ``plan`` raises it again."""
    with contextlib.suppress(Exception):
        process.start()


def _settle(
    waiters: list[Waiter], grammar: CompiledGrammar | None, error: Exception | None
) -> None:
    """Give each waiter the grammar, or its own copy of the error, as several threads raise it."""
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
