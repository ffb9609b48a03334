"""SglFunction: a Python function over a state, and the ways to run it."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from sglang.backend.base import Backend
from sglang.backend.workers import Workers
from sglang.compile.tracer import constant_prefix, tracing
from sglang.forecast.foresight import Foresight
from sglang.inspect.timeline.tracing import NO_TRACE, Opened, opened, recording_of
from sglang.ir.params import ALIASES, DEFAULTS, GenParams, checked, document, split
from sglang.run.executor import StreamExecutor
from sglang.run.resolve import resolve_backend
from sglang.run.run_scope import Run
from sglang.state import ProgramState

if TYPE_CHECKING:
    from sglang.batch.run_batch import Batch
    from sglang.compile.compiler import CompiledProgram
    from sglang.ir.graph import Graph

Program = TypeVar("Program", bound="SglFunction")

# Threads for the bodies of plain programs in event loops. They wait for the loop alone, so that a
# bounded number of them always comes to an end.
BODIES = Workers()


class SglFunction(Foresight):
    """What ``@sglang.function`` makes.

    ``bound`` holds arguments given by ``bind``; ``num_api_spec_tokens`` is how far one call of an
    API model may run on to answer the gens that follow (see ``speculation``).
    """

    def __init__(
        self,
        func: Callable[..., Any],
        num_api_spec_tokens: int | None = None,
        bound: Mapping[str, Any] | None = None,
    ) -> None:
        self.func = func
        if num_api_spec_tokens is not None and (
            not isinstance(num_api_spec_tokens, int) or num_api_spec_tokens < 1
        ):
            raise ValueError(f"num_api_spec_tokens is {num_api_spec_tokens!r}; give at least 1")
        self.num_api_spec_tokens = num_api_spec_tokens
        self.bound = dict(bound or {})
        functools.update_wrapper(self, func)
        names = list(inspect.signature(func).parameters)
        if not names or names[0] != "s":
            method = "; a method is no program: write a function, which may be inside of one"
            raise ValueError(
                f"the first parameter of {func.__name__!r} must be s, the state; it has {names}"
                + (method if names[:1] in (["self"], ["cls"]) else "")
            )
        if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
            raise ValueError(f"{func.__name__!r} yields: calling it would run nothing; use return")
        self.arg_names = names[1:]
        self.is_async = inspect.iscoroutinefunction(func)

    def bind(self: Program, **arguments: Any) -> Program:
        """The same function with some arguments given. Raises TypeError for an unknown name."""
        unknown = [name for name in arguments if name not in self.arg_names]
        if unknown and not self._takes_any():
            raise TypeError(f"{self.func.__name__} has no argument {unknown[0]!r} to bind")
        bound = copy.copy(self)
        bound.bound = {**self.bound, **arguments}
        return bound

    def _takes_any(self) -> bool:
        parameters = inspect.signature(self.func).parameters.values()
        return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)

    def run(
        self,
        *args: Any,
        stream: bool = False,
        backend: Any = None,
        use_thread: bool = True,
        trace: Any = None,
        **kwargs: Any,
    ) -> ProgramState:
        """Run to the end and give the state.

        Keyword arguments named as parameters of the function are its arguments. Others named as
        fields of ``GenParams`` are the defaults of every ``gen``. With ``stream=True`` the program
        runs in a thread and the state comes at once: read it by ``text_iter``. ``trace`` records
        it: into a file (.html, .json), a ``Trace``, or with True for ``state.trace()``.

        Raises:
            ProgramError: a primitive failed; what the function itself raises comes as it is.
            TypeError: a keyword names both an argument and an option of ``run``.
        """
        self._verify_options(stream=stream or None, backend=backend, trace=trace)
        params, arguments = self._sorted(kwargs)
        if (record := tracing()) is not None:
            return record.call(self, args, arguments, params, backend=backend, stream=stream)
        chosen = self._resolved(backend)
        state = self.new_state(
            chosen, params, stream=stream, use_thread=use_thread, trace=opened(trace)
        )
        if not stream:
            self.start(state, args, arguments)
            return state
        detached = partial(copy_context().run, self._detached, state, args, arguments)
        threading.Thread(target=detached, name="sglang-program", daemon=True).start()
        return state

    async def arun(
        self,
        *args: Any,
        stream: bool = False,
        backend: Any = None,
        trace: Any = None,
        **kwargs: Any,
    ) -> ProgramState:
        """``run`` for an event loop; programs written as ``async def`` can only be run so.

        Calls of the model are tasks of the loop, however many forks there are. The body of a plain
        ``def``, which waits where it reads, has a thread of its own. Cancelling aborts the calls in
        flight. With ``stream=True`` the state comes at once: read it by ``text_async_iter`` or
        ``value_async_iter``.
        """
        self._verify_options(stream=stream or None, backend=backend, trace=trace)
        params, arguments = self._sorted(kwargs)
        if (record := tracing()) is not None:
            return record.call(self, args, arguments, params, backend=backend, stream=stream)
        loop = asyncio.get_running_loop()
        chosen, to = self._resolved(backend), opened(trace)
        state = self.new_state(chosen, params, stream=stream, loop=loop, trace=to)
        await self.astart(state, args, arguments, stream=stream)
        return state

    def _verify_options(self, **options: Any) -> None:
        """Raise TypeError where an option that was given may be meant for an argument."""
        for name, value in options.items():
            if name in self.arg_names and value is not None:
                raise TypeError(
                    f"{name!r} is an argument of {self.func.__name__} and an option of run; give "
                    f"the argument by position, by bind({name}=...), or rename it"
                )

    def _resolved(self, backend: Any) -> Backend:
        """The backend to run on where ``backend`` was given."""
        return resolve_backend(backend)

    def _sorted(self, kwargs: dict[str, Any]) -> tuple[GenParams, dict[str, Any]]:
        """Generation parameters, complete, and the function's own arguments. A name that is both
        is the function's."""
        own = {name: value for name, value in kwargs.items() if name in self.arg_names}
        rest = {name: value for name, value in kwargs.items() if name not in own}
        for alias, name in ALIASES.items():
            if alias in rest:
                if name in rest:
                    raise TypeError(f"{alias} and {name} are the same parameter; give one of them")
                rest[name] = rest.pop(alias)
        params, arguments = split(rest)
        return checked(params).over(DEFAULTS), {**own, **arguments}

    def _parameters(self, kwargs: dict[str, Any], what: str) -> GenParams:
        """Generation parameters of a batch or plan, whose items hold the arguments. Raises
        TypeError for anything else."""
        params, unknown = self._sorted(kwargs)
        for name in unknown:
            if name in self.arg_names:
                raise TypeError(
                    f"{name!r} is an argument of {self.func.__name__}; give it in each item, or by "
                    f"bind({name}=...)"
                )
            raise TypeError(f"a {what} has no option {name!r}")
        return params

    def new_state(
        self,
        backend: Backend,
        defaults: GenParams,
        *,
        stream: bool = False,
        use_thread: bool = True,
        loop: asyncio.AbstractEventLoop | None = None,
        trace: Opened = NO_TRACE,
    ) -> ProgramState:
        """A state for ``start``, or with ``loop`` for ``astart``."""
        run = Run(loop, self.num_api_spec_tokens or 0, backend)
        run.recording = recording_of(self.func.__name__, trace, inline=not (use_thread or loop))
        executor = StreamExecutor(
            backend, defaults, run=run, streaming=stream, use_thread=use_thread, open=stream
        )
        if run.recording is not None:
            executor.track = run.recording.track
        return ProgramState(executor)

    def start(self, state: ProgramState, args: Sequence[Any], arguments: Mapping[str, Any]) -> None:
        """``run`` over a state that is given. What it raises, the state tells as well."""
        executor = state._executor
        if self.is_async:
            name = self.func.__name__
            raise TypeError(f"{name} is async: await {name}.arun(...), or asyncio.run of that")
        with executor.run.inside(args, arguments):
            try:
                state.ret_value = self.func(state, *args, **{**self.bound, **arguments})
                executor.run.finish()
            except BaseException as error:
                executor.run.cancel(error)
                raise

    def _detached(
        self, state: ProgramState, args: Sequence[Any], arguments: Mapping[str, Any]
    ) -> None:
        """``start`` in a thread of its own: its failure is kept for who reads the state."""
        try:
            self.start(state, args, arguments)
        except BaseException as error:
            state._executor.fail(error, None)
        finally:
            state._executor.close()

    async def astart(
        self,
        state: ProgramState,
        args: Sequence[Any],
        arguments: Mapping[str, Any],
        *,
        stream: bool = False,
    ) -> None:
        """``arun`` over a state that is given. What it raises, the state tells as well."""
        arguments = {**self.bound, **arguments}
        if not stream:
            await self._acall(state, args, arguments)
            return
        task = asyncio.create_task(self._adetached(state, args, arguments))
        state._executor.run.program = task

    async def _acall(
        self, state: ProgramState, args: Sequence[Any], arguments: Mapping[str, Any]
    ) -> None:
        executor = state._executor
        with executor.run.inside(args, arguments):
            try:
                state.ret_value = await self._abody(state, args, arguments)
                await executor.run.afinish()
            except BaseException as error:
                executor.run.cancel(error)
                await asyncio.gather(*executor.run.tasks, return_exceptions=True)
                raise

    async def _abody(
        self, state: ProgramState, args: Sequence[Any], arguments: Mapping[str, Any]
    ) -> Any:
        """The function's result. A plain one, which may wait, has a thread of its own."""
        if self.is_async:
            return await self.func(state, *args, **arguments)
        body = BODIES.call(partial(self.func, state, *args, **arguments))
        return await asyncio.wrap_future(body)

    async def _adetached(
        self, state: ProgramState, args: Sequence[Any], arguments: Mapping[str, Any]
    ) -> None:
        executor = state._executor
        try:
            await self._acall(state, args, arguments)
        except BaseException as error:
            executor.fail(error, None)
            if not isinstance(error, Exception):
                raise
        finally:
            executor.close()

    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        backend: Any = None,
        num_threads: int | str = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        return_errors: bool = False,
        results_file: str | os.PathLike[str] | None = None,
        trace: Any = None,
        **kwargs: Any,
    ) -> list[ProgramState] | Iterator[ProgramState]:
        """Run once for each item (a dict of arguments, or a tuple in their order), in parallel.

        The common constant prefix is computed first where it is long. With ``generator_style`` the
        states are given in order, a bounded number ahead of the reader.

        Items that end well are kept in ``results_file``, a line each; the next batch with the same
        file finds them there and does not run them again. They are known by the program's code,
        the arguments and the parameters: for another model or backend give another file.
        ``trace`` as of ``run``, one for all.

        Raises:
            BatchError: items have failed; all have run, and their states are in it. With
                ``generator_style`` it is the item's own error instead, which ends the batch when
                its turn comes. With ``return_errors`` neither: the item's ``error()`` tells.
        """
        from sglang.batch.run_batch import collected, item_of

        self._verify_options(trace=trace)
        if self.is_async:
            raise TypeError(f"{self.func.__name__} is async; use arun_batch(...)")
        if (record := tracing()) is not None:
            params, rest = self._sorted(kwargs)
            items = [{**rest, **item_of(self, item)} for item in batch_kwargs]
            return [record.call(self, (), item, params, backend=backend) for item in items]
        batch = self._batch(
            batch_kwargs, backend, kwargs, limit=num_threads, progress_bar=progress_bar,
            return_errors=return_errors or not generator_style, results_file=results_file,
            trace=opened(trace),
        )  # fmt: skip
        if generator_style:
            return batch.run()
        return list(batch.run()) if return_errors else collected(batch)

    def arun_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        backend: Any = None,
        concurrency: int | str = "auto",
        progress_bar: bool = False,
        return_errors: bool = False,
        results_file: str | os.PathLike[str] | None = None,
        trace: Any = None,
        **kwargs: Any,
    ) -> AsyncIterator[ProgramState]:
        """``run_batch`` with ``generator_style`` for an event loop: ``async for state in ...``.

        ``concurrency`` items run at once, as tasks; see ``arun`` for what needs a thread.
        """
        self._verify_options(trace=trace)
        return self._batch(
            batch_kwargs, backend, kwargs, limit=concurrency, progress_bar=progress_bar,
            return_errors=return_errors, results_file=results_file, trace=opened(trace),
        ).arun()  # fmt: skip

    def _batch(
        self,
        items: Sequence[Mapping[str, Any] | Sequence[Any]],
        backend: Any,
        kwargs: dict[str, Any],
        **options: Any,
    ) -> Batch:
        from sglang.batch.run_batch import Batch, item_of

        params = self._parameters(kwargs, "batch")
        if not isinstance(items, Iterable):
            raise TypeError(f"the items of a batch are {items!r:.60}; give a list of dicts")
        arguments = [item_of(self, item) for item in items]
        return Batch(self, arguments, self._resolved(backend), params, **options)

    def cache(self, backend: Any = None) -> str:
        """Have the backend compute and cache the constant text this program begins with, and
        give that text.
        """
        chosen = self._resolved(backend)
        prefix = constant_prefix(self, chosen, {})
        chosen.cache_prefix(prefix)
        return prefix

    def trace(self, *, backend: Any = None, **known: Any) -> Graph:
        """The program as a graph, the arguments ``known`` being constants and the others open.

        Raises TraceError, with the line, where the program's flow needs a value that only a run
        knows. ``backend`` is not asked for anything.
        """
        from sglang.compile.tracer import trace

        return trace(self, known)

    def compile(self, backend: Any = None, **known: Any) -> CompiledProgram:
        """The program without its Python source, for every way of running; see ``compiler``.
        Raises as ``trace`` does."""
        from sglang.compile.compiler import compile

        return compile(self, backend, **known)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """``run``; or, given a state first, continue that state with this function's body and give
        the function's own result.
        """
        if args and isinstance(args[0], ProgramState):
            return self.func(args[0], *args[1:], **{**self.bound, **kwargs})
        return self.run(*args, **kwargs)


document(SglFunction.run)
document(SglFunction.run_batch)
document(SglFunction.arun_batch)
