"""SglFunction: a Python function over a state, and the ways to run it."""

from __future__ import annotations

import asyncio
import copy
import functools
import inspect
import os
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextvars import copy_context
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from sglang.backend.base import Backend
from sglang.backend.worker_threads import Workers
from sglang.compile.graph_function import argument_values, graph_function
from sglang.compile.graph_runner import GraphRun, GraphSchedule
from sglang.compile.tracer import constant_prefix, trace, trace_with_tools, tracing
from sglang.ir.graph import Graph
from sglang.ir.params import GenParams, document, params_and_arguments
from sglang.on_server.submittable import Submittable
from sglang.run.live_nodes import Tools
from sglang.run.run_scope import Run, resolve_backend
from sglang.run.stream_executor import StreamExecutor
from sglang.state import ProgramState
from sglang.tools.chat_messages import begun
from sglang.views.timeline.tracing import NO_TRACE, Opened, opened, recording_of

Own = TypeVar("Own", bound="SglFunction")

if TYPE_CHECKING:
    from sglang.batch.run_batch import ProgramBatch
    from sglang.forecast.batch_plan import Item, Plan
    from sglang.forecast.explanation import Explanation
    from sglang.forecast.rehearsal import Answers

# Threads for the bodies of plain programs in event loops. They wait for the loop alone.
BODIES = Workers()


class SglFunction(Submittable):
    """A program: the function under ``@sglang.function``, and the ways to run it.

    Args:
        num_api_spec_tokens: tokens that one call of an API model may run on for the next gens.
        bound: arguments given by ``bind``.
    """

    backend: Any = None

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

    def bind(self: Own, **arguments: Any) -> Own:
        """Return the program with some arguments given. Raise TypeError for an unknown name."""
        unknown = [name for name in arguments if name not in self.arg_names]
        if unknown and not self._takes_any():
            raise TypeError(f"{self.func.__name__} has no argument {unknown[0]!r} to bind")
        bound = copy.copy(self)
        bound.bound = {**self.bound, **arguments}
        return bound

    def __repr__(self) -> str:
        given = (f"{n}={self.bound[n]!r:.40}" if n in self.bound else n for n in self.arg_names)
        return f"{type(self).__name__}({self.func.__name__}({', '.join(given)}))"

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
        on: str | None = None,
        **kwargs: Any,
    ) -> ProgramState:
        """Run to the end and return the state.

        Keyword arguments named as parameters of the function are its arguments. Others named as
        fields of ``GenParams`` are the defaults of every ``gen``. With ``stream=True`` the program
        runs in a thread and the state is returned at once: read it by ``text_iter``. ``trace``
        records it: into a file (.html, .json), a ``Trace``, or with True for ``state.trace()``.
        ``on="server"`` has a runtime run the whole program, as ``submit`` does; the state is the
        same. ``messages=`` (where the function has no such parameter): turns to begin with.

        Raises:
            ProgramError: a primitive failed. Errors of the function itself are raised as they are.
            TypeError: a keyword names both an argument and an option of ``run``.
        """
        self._verify_options(stream=stream or None, backend=backend, trace=trace, on=on)
        params, arguments = params_and_arguments(kwargs, self.arg_names)
        if (record := tracing()) is not None:
            return record.call(self, args, arguments, params, backend=backend, stream=stream)
        if on is not None:
            options = {"on": on, "stream": stream, "trace": opened(trace)}
            sent = self._submitted(args, arguments, params, backend, **options)
            return sent.replayed if stream else sent.result()
        chosen = self.resolved(backend)
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
        on: str | None = None,
        **kwargs: Any,
    ) -> ProgramState:
        """``run`` for an event loop; the only way to run a program written as ``async def``.

        Calls of the model are tasks of the loop, however many forks there are. The body of a plain
        ``def``, which waits where it reads, has its own thread. Cancelling aborts the calls in
        flight. With ``stream=True`` the state is returned at once: see ``text_async_iter``.
        """
        self._verify_options(stream=stream or None, backend=backend, trace=trace, on=on)
        params, arguments = params_and_arguments(kwargs, self.arg_names)
        if (record := tracing()) is not None:
            return record.call(self, args, arguments, params, backend=backend, stream=stream)
        if on is not None:
            options = {"on": on, "stream": stream, "trace": opened(trace)}
            sent = self._submitted(args, arguments, params, backend, **options)
            return sent.replayed if stream else await sent.aresult()
        chosen, loop = self.resolved(backend), asyncio.get_running_loop()
        state = self.new_state(chosen, params, stream=stream, loop=loop, trace=opened(trace))
        await self.astart(state, args, arguments, stream=stream)
        return state

    def _of_graph(self, graph: Graph, tools: Tools) -> CompiledProgram:
        """Return a program that runs ``graph``."""
        return CompiledProgram(graph, None, tools)

    def _verify_options(self, **options: Any) -> None:
        """Raise TypeError for a given option that is also the name of an argument."""
        for name, value in options.items():
            if name in self.arg_names and value is not None:
                raise TypeError(
                    f"{name!r} is an argument of {self.func.__name__} and an option of run; give "
                    f"the argument by position, by bind({name}=...), or rename it"
                )

    def resolved(self, backend: Any) -> Backend:
        """Return the backend to run on where ``backend`` was given."""
        return resolve_backend(backend)

    def _parameters(self, kwargs: dict[str, Any], what: str) -> GenParams:
        """Return the generation parameters of a batch or plan. Raise TypeError for anything else:
        its items hold the arguments."""
        params, unknown = params_and_arguments(kwargs, self.arg_names)
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
        """Return a state for ``start``, or with ``loop`` for ``astart``."""
        run = Run(loop, self.num_api_spec_tokens or 0, backend)
        run.recording = recording_of(self.func.__name__, trace, inline=not (use_thread or loop))
        executor = StreamExecutor(
            backend, defaults, run=run, streaming=stream, use_thread=use_thread, open=stream
        )
        if run.recording is not None:
            executor.track = run.recording.track
        return ProgramState(executor)

    def start(self, state: ProgramState, args: Sequence[Any], arguments: Mapping[str, Any]) -> None:
        """Run the program on a given state. Readers of the state get the error that this raises
        too."""
        executor = state._executor
        if self.is_async:
            name = self.func.__name__
            raise TypeError(f"{name} is async: await {name}.arun(...), or asyncio.run of that")
        arguments = begun(state, self.func, arguments)
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
        """Run ``start`` in its own thread. Readers of the state get its error."""
        try:
            self.start(state, args, arguments)
        except BaseException as error:
            state._executor.run.cancel(error)
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
        """Run ``start`` in an event loop; with ``stream`` in a task of its own."""
        if stream:
            task = asyncio.create_task(self._adetached(state, args, arguments))
            state._executor.run.program = task
            return
        arguments = {**self.bound, **begun(state, self.func, arguments)}
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
        """Return the function's result. A plain function, which may wait, gets its own thread."""
        if self.is_async:
            return await self.func(state, *args, **arguments)
        body = BODIES.call(partial(self.func, state, *args, **arguments))
        return await asyncio.wrap_future(body)

    async def _adetached(
        self, state: ProgramState, args: Sequence[Any], arguments: Mapping[str, Any]
    ) -> None:
        try:
            await self.astart(state, args, arguments)
        except BaseException as error:
            state._executor.run.cancel(error)
            if not isinstance(error, Exception):
                raise
        finally:
            state._executor.close()

    @overload
    def run_batch(
        self, batch_kwargs: Sequence[Item], *, generator_style: Literal[True], **kwargs: Any
    ) -> Generator[ProgramState, None, None]: ...
    @overload
    def run_batch(
        self, batch_kwargs: Sequence[Item], *, generator_style: Literal[False] = ..., **kwargs: Any
    ) -> list[ProgramState]: ...
    def run_batch(
        self, batch_kwargs: Sequence[Item], *, backend: Any = None, num_threads: int | str = "auto",
        progress_bar: bool = False, generator_style: bool = False, return_errors: bool = False,
        results_file: str | os.PathLike[str] | None = None, trace: Any = None,
        on: str | None = None, **kwargs: Any,
    ) -> list[ProgramState] | Generator[ProgramState, None, None]:  # fmt: skip
        """Run once for each item (a dict of arguments, or a tuple in their order), in parallel.

        The common constant prefix is computed first where it is long. With ``generator_style`` the
        states are yielded in order, a bounded number ahead of the reader.

        Items that end well are kept in ``results_file``, a line each, and are not run again. Its
        keys are the program's code, the arguments and the parameters: for another model or backend
        give another file. ``trace`` as in ``run``, one for all items. ``on="server"`` sends each
        item whole, as ``run`` does; at most ``num_threads`` are there at once.

        Raises:
            BatchError: items have failed; all have run, and the error holds their states. With
                ``generator_style`` the item's own error is raised instead, when its turn comes,
                and ends the batch. With ``return_errors`` nothing is raised: see ``error()``.
        """
        from sglang.batch.run_batch import collected, item_of

        self._verify_options(trace=trace, on=on)
        if self.is_async:
            raise TypeError(f"{self.func.__name__} is async; use arun_batch(...)")
        if (record := tracing()) is not None:
            params, rest = params_and_arguments(kwargs, self.arg_names)
            items = [{**rest, **item_of(self, item)} for item in batch_kwargs]
            return [record.call(self, (), item, params, backend=backend) for item in items]
        batch = self._batch(
            batch_kwargs, backend, kwargs, limit=num_threads, progress_bar=progress_bar,
            return_errors=return_errors or not generator_style, results_file=results_file,
            trace=opened(trace), on=on,
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
        on: str | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[ProgramState, None]:
        """``run_batch`` with ``generator_style`` for an event loop: ``async for state in ...``.
        ``concurrency`` items run at once, as tasks; see ``arun`` for what needs a thread."""
        self._verify_options(trace=trace, on=on)
        return self._batch(
            batch_kwargs, backend, kwargs, limit=concurrency, progress_bar=progress_bar,
            return_errors=return_errors, results_file=results_file, trace=opened(trace), on=on,
        ).arun()  # fmt: skip

    def _batch(
        self, items: Any, backend: Any, kwargs: dict[str, Any], *, on: str | None, **options: Any
    ) -> ProgramBatch:
        from sglang.batch.run_batch import ProgramBatch, item_of

        params = self._parameters(kwargs, "batch")
        if not isinstance(items, Iterable):
            raise TypeError(f"the items of a batch are {items!r:.60}; give a list of dicts")
        arguments, chosen = [item_of(self, item) for item in items], self.resolved(backend)
        send = None if on is None else self._sender(on, params, chosen)
        return ProgramBatch(self, arguments, chosen, params, send=send, **options)

    def explain(
        self,
        *args: Any,
        backend: Any = None,
        answers: Answers | None = None,
        **kwargs: Any,
    ) -> Explanation:
        """Return exactly what ``run`` would send, call by call; print it. Nothing is sent.

        Generated values are shown as ``⟨name⟩`` and a select takes its first option, unless
        ``answers`` has a text for the name, or several to be used in turn (the last one repeats).
        With ``num_api_spec_tokens`` a chat reply is assumed to follow the program, a completion to
        save no call. Raise SglangError where the program fails on such values, or makes over 1000
        calls.
        """
        from sglang.forecast.explanation import explain

        params, arguments = params_and_arguments(kwargs, self.arg_names)
        answers = {} if answers is None else answers
        return explain(self, self.resolved(backend), args, arguments, params, answers)

    def plan(
        self,
        batch: Item | Sequence[Item],
        *,
        backend: Any = None,
        answers: Answers | Sequence[Answers] | None = None,
        lengths: Mapping[str, int] | None = None,
        prices: Mapping[str, float] | None = None,
        media_tokens: int | None = None,
        **kwargs: Any,
    ) -> Plan:
        """Return the work of ``run_batch``: prompts as a tree, and tokens. No prompt is sent.

        Args:
            batch: items as ``run_batch`` takes them, or one.
            answers: texts of generated values, as in ``explain``; or such a dict for each item.
                A value without one is unknown text of as many tokens as it may have, and a select
                takes its first option.
            lengths: tokens of such texts, by name.
            prices: dollars for a million tokens: "input", "output" and, where the service has a
                price for tokens in its cache, "cached".
            media_tokens: tokens of each image or video.
            kwargs: generation parameters, as in ``run_batch``.

        Raises:
            SglangError: as ``explain``; the program shows media and ``media_tokens`` is not given,
                or runs a tool of whose text there is neither an answer nor a length.
            BackendError: the backend does not show its tokenizer.
        """
        from sglang.batch.run_batch import item_of
        from sglang.forecast.batch_plan import items_of, plan

        params = self._parameters(kwargs, "plan")
        items = [item_of(self, item) for item in items_of(batch)]
        return plan(
            self, self.resolved(backend), items, params, answers=answers, lengths=lengths,
            prices=prices, media_tokens=media_tokens,
        )  # fmt: skip

    def cache(self, backend: Any = None) -> str:
        """Have the backend cache the constant text that this program begins with. Return it."""
        chosen = self.resolved(backend)
        prefix = constant_prefix(self, chosen, {})
        chosen.cache_prefix(prefix)
        return prefix

    def trace(self, *, backend: Any = None, **known: Any) -> Graph:
        """Return the program as a graph: arguments ``known`` are constants, the others open.

        Raise TraceError, with the line, where the program's flow needs a value that only a run
        knows. ``backend`` is not called.
        """
        return trace(self, known)

    def compile(self, backend: Any = None, **known: Any) -> CompiledProgram:
        """Return the program without its Python source, for every way of running. ``backend`` is
        used where a run names none. Raise the errors of ``trace``.
        """
        graph, tools = trace_with_tools(self, known)
        return CompiledProgram(graph, backend, tools)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as ``run`` does. If the first argument is a state, continue that state and return the
        function's result."""
        if args and isinstance(args[0], ProgramState):
            return self.func(args[0], *args[1:], **{**self.bound, **kwargs})
        return self.run(*args, **kwargs)


document(SglFunction.run)
document(SglFunction.submit)
document(SglFunction.run_batch)
document(SglFunction.arun_batch)


class CompiledProgram(SglFunction):
    """A graph that runs in all the ways of an ``SglFunction``.

    A missing, unknown or fixed argument is a TypeError, as in Python; so is None, because the
    tracer cannot tell it from other values. ``tools`` has the functions of the graph's tools by
    name; ValueError where one is missing.
    """

    def __init__(self, graph: Graph, backend: Any = None, tools: Tools | None = None) -> None:
        graph.check()
        self.graph = graph
        self.backend = backend
        self._schedule = GraphSchedule(graph, tools)
        self.tools = self._schedule.tools
        self._continued = graph_function(graph, GraphSchedule(graph, tools, continued=True))
        super().__init__(graph_function(graph, self._schedule), graph.num_api_spec_tokens)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call as ``SglFunction`` is called."""
        if args and isinstance(args[0], ProgramState):
            return self._continued(*args, **{**self.bound, **kwargs})
        return self.run(*args, **kwargs)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the graph, for ``load``. Raise ValueError for a value that JSON cannot carry."""
        Path(path).write_text(self.graph.to_json(), encoding="utf-8")

    def resolved(self, backend: Any) -> Backend:
        return super().resolved(self.backend if backend is None else backend)

    async def _abody(
        self, state: ProgramState, args: Sequence[Any], arguments: Mapping[str, Any]
    ) -> Any:
        values = argument_values(inspect.signature(self.func), state, *args, **arguments)
        return await GraphRun(self._schedule, state._executor, values).submit().aresult()
