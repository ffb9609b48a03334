"""ProgramState: the ``s`` of a program, and ForkGroup: several of them, forked from one."""

from __future__ import annotations

import asyncio
import operator
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from sglang.backend.base import Backend
from sglang.backend.branch_bodies import amapped, mapped
from sglang.backend.renamed_parameters import renamed
from sglang.errors import Cancelled, SglangError
from sglang.ir.nodes import Node, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, SetVariable, node_of
from sglang.ir.params import GenParams
from sglang.ir.source_location import caller
from sglang.run.api_speculation import Speculation
from sglang.run.forks import append_side_by_side, record_join, refuse_copy, refuse_offset
from sglang.run.run_scope import Usage
from sglang.run.stream_executor import StreamExecutor
from sglang.semantics.transform_words import TransformedValue
from sglang.tools.chat_messages import shown, turns_of
from sglang.views.timeline.trace import Trace
from sglang.views.timeline.tracing import NO_TRACE, Opened


class Program(Protocol):
    """A function over a state, as tracing, batches and forecasts know it.

    Attributes:
        func: the Python function; its first parameter is the state.
        bound: arguments that are given already.
        arg_names: the other parameters.
        is_async: the function is a coroutine function.
        num_api_spec_tokens: as in ``sglang.function``.
        backend: the backend of a compiled program that has one.
    """

    func: Callable[..., Any]
    bound: dict[str, Any]
    arg_names: list[str]
    is_async: bool
    num_api_spec_tokens: int | None
    backend: Any

    def resolved(self, backend: Any) -> Backend:
        """Return the backend to run on where ``backend`` was given."""

    def new_state(
        self,
        backend: Backend,
        defaults: GenParams,
        *,
        stream: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
        trace: Opened = NO_TRACE,
    ) -> ProgramState:
        """Return a state for ``start``, or with ``loop`` for ``astart``."""

    def start(self, state: ProgramState, args: Sequence[Any], arguments: Mapping[str, Any]) -> None:
        """Run the program on ``state`` until it ends. Raise what the program raises."""

    async def astart(
        self, state: ProgramState, args: Sequence[Any], arguments: Mapping[str, Any]
    ) -> None:
        """Run ``start`` in an event loop."""


class ProgramState:
    """The ``s`` of a program: the program appends to it and reads from it.

    Appending (``s += ...``) never waits for the model. Reading a variable or the text waits, and
    raises ProgramError, with the line of the ``s += ...``, if that failed. Methods whose names
    begin with ``a`` are awaited and occupy no thread.
    """

    def __init__(self, executor: StreamExecutor) -> None:
        self._executor = executor
        self._returned: Any = None
        self._groups: list[weakref.ref[ForkGroup]] = []

    @property
    def ret_value(self) -> Any:
        """Result of the program. Wait for a program that still runs; raise what it has raised."""
        self._executor.wait_for_program()
        return self._returned

    @ret_value.setter
    def ret_value(self, value: Any) -> None:
        self._returned = value

    def cancel(self) -> None:
        """End the program, if it still runs, and abort its calls; ``with`` does so at its end.

        What is complete stays readable, the rest raises.
        """
        if self._executor.others_append():
            self._executor.run.cancel(Cancelled("the program was cancelled by its reader"))

    __reduce__ = refuse_copy

    def __enter__(self) -> ProgramState:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __iadd__(self, other: object) -> ProgramState:
        self._executor.submit(node_of(other), caller())
        return self

    # Variables

    def keys(self) -> list[str]:
        """Names of the variables that are made or appended; does not wait. ``dict(s)`` waits."""
        coming = self._executor.coming() or ()
        return list(dict.fromkeys((*self._executor.stream.variables, *coming)))

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __getitem__(self, name: str) -> Any:
        return self._executor.value(name)

    def __setitem__(self, name: str, value: Any) -> None:
        transformed = isinstance(value, TransformedValue)
        node = value.node(name) if transformed else SetVariable(name, value)
        self._executor.submit(node, caller())

    def __contains__(self, name: str) -> bool:
        """Whether the variable exists or is being made; does not wait."""
        return self._executor.declared(name)

    def get_var(self, name: str) -> Any:
        """Return ``s[name]``."""
        return self[name]

    def set_var(self, name: str, value: Any) -> None:
        """Set ``s[name] = value``."""
        self[name] = value

    async def aget(self, name: str) -> Any:
        """Return ``s[name]``, awaited."""
        return await self._executor.avalue(name)

    def value(self, name: str) -> Any:
        """Return the variable as the type that it was generated for (``schema``, ``json_schema``,
        ``dtype``): a model instance, an int, ...; a list of them where n > 1. Any other variable is
        returned as it is. Raises InvalidOutput, with the line, if the text is no value of the type.
        """
        return self._typed(name, self._executor.value(name))

    async def avalue(self, name: str) -> Any:
        """``value``, awaited."""
        return self._typed(name, await self._executor.avalue(name))

    def _typed(self, name: str, text: Any) -> Any:
        stream = self._executor.stream
        typed, meta = stream.typed.get(name), stream.meta.get(name, {})
        if typed is None:
            return text
        if isinstance(text, list):
            return [typed.value(one, its) for one, its in zip(text, meta)]
        return typed.value(text, meta)

    def get_meta_info(self, name: str) -> Any:
        """meta_info of the variable's generation or selection (a list of them where n > 1)."""
        return self._executor.meta(name)

    async def aget_meta_info(self, name: str) -> Any:
        """``get_meta_info``, awaited."""
        return await self._executor.ameta(name)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[ProgramState]:
        """Make variable ``name`` of the text that is appended inside."""
        self._executor.submit(ScopeBegin(name), caller())
        try:
            yield self
        finally:
            self._executor.submit(ScopeEnd(name), caller())

    # Text

    def text(self) -> str:
        """The prompt and all generated text, with the chat template. Waits; raises ProgramError."""
        self._executor.wait()
        self._executor.check()
        return self._executor.stream.text

    async def atext(self) -> str:
        """``text``, awaited."""
        await self._executor.await_end()
        self._executor.check()
        return self._executor.stream.text

    def messages(self, turns: Sequence[Mapping[str, Any]] | None = None) -> list[dict[str, Any]]:
        """Finished turns in OpenAI's form: ``role``, ``content``, ``tool_calls``. Waits; raises.
        Given ``turns`` in that form, append them instead; raises TypeError or ValueError."""
        if turns is not None:
            self._executor.submit(turns_of(turns), caller())
            return []
        self._executor.wait()
        self._executor.check()
        return shown(self._executor.stream.messages)

    @renamed(var_name="var")
    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """Pieces of the text, or of one variable, as they come (with ``run(stream=True)``)."""
        shown = 0
        for text, _ in self._executor.watch(var_name):
            if len(text) > shown:
                yield text[shown:]
                shown = len(text)

    @renamed(var_name="var")
    async def text_async_iter(
        self, var_name: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """``text_iter`` for a running event loop, holding no thread.

        With ``return_meta_data``, which needs ``var_name``, the items are ``(piece, meta_info)``.
        The last has the final meta_info, and its piece may be empty.
        """
        if return_meta_data and var_name is None:
            raise ValueError("return_meta_data needs var_name: the variable whose meta_info it is")
        shown = 0
        async for text, done in self._executor.awatch(var_name):
            piece, shown = text[shown:], max(shown, len(text))
            if return_meta_data and (piece or done):
                yield piece, self._executor.stream.meta.get(var_name or "", {})
            elif piece:
                yield piece

    @renamed(var_name="var")
    def value_iter(self, var_name: str) -> Iterator[Any]:
        """Yield the typed object of a variable as it grows (with ``run(stream=True)``). Parts that
        are not generated yet are None or absent. The last object is complete and validated."""
        last: Any = None
        for text, done in self._executor.watch(var_name):
            found = self._partial(var_name, text, done)
            if found is not None and (done or found != last):
                yield found
                last = found

    @renamed(var_name="var")
    async def value_async_iter(self, var_name: str) -> AsyncIterator[Any]:
        """``value_iter`` for a running event loop, holding no thread."""
        last: Any = None
        async for text, done in self._executor.awatch(var_name):
            found = self._partial(var_name, text, done)
            if found is not None and (done or found != last):
                yield found
                last = found

    def _partial(self, name: str, text: str, done: bool) -> Any:
        if done:
            return self._typed(name, self._executor.stream.variables[name])
        typed = self._executor.stream.typed.get(name)
        return text if typed is None else typed.constraint.parse_partial(text)

    # Waiting

    def sync(self) -> None:
        """Wait until everything appended so far is done, or has failed."""
        self._executor.wait()

    async def adone(self) -> None:
        """``sync``, awaited."""
        await self._executor.await_end()

    def error(self) -> BaseException | None:
        """Wait; return the exception that reading would raise, or None."""
        self._executor.wait()
        return self._error()

    async def aerror(self) -> BaseException | None:
        """``error``, awaited."""
        await self._executor.await_end()
        return self._error()

    def _error(self) -> BaseException | None:
        failure = self._executor.failure
        return failure.exception(self._executor.others_append()) if failure else None

    @property
    def usage(self) -> Usage:
        """Calls and tokens of the program so far, forks included."""
        return self._executor.run.usage

    @property
    def speculation(self) -> Speculation:
        """Calls and tokens that ``num_api_spec_tokens`` has saved so far, forks included."""
        return self._executor.run.speculation

    # Roles

    def system(self, expr: object = None) -> Any:
        """Append a system turn, or ``with s.system():`` append inside one."""
        return self._role("system", expr)

    def user(self, expr: object = None) -> Any:
        """Append a user turn, or ``with s.user():`` append inside one."""
        return self._role("user", expr)

    def assistant(self, expr: object = None) -> Any:
        """Append an assistant turn, or ``with s.assistant():`` append inside one."""
        return self._role("assistant", expr)

    def _role(self, role: str, expr: object) -> Any:
        if expr is None:
            return self._role_block(role)
        self._executor.submit(RoleBegin(role) + node_of(expr) + RoleEnd(role), caller())
        return None

    @contextmanager
    def _role_block(self, role: str) -> Iterator[ProgramState]:
        self._executor.submit(RoleBegin(role), caller())
        try:
            yield self
        finally:
            self._executor.submit(RoleEnd(role), caller())

    # Forks

    def fork(self, size: int = 1, position_ids_offset: Sequence[int] | None = None) -> ForkGroup:
        """Return ``size`` states that continue from here in parallel. Does not wait."""
        try:
            size = operator.index(size)
        except TypeError:
            raise TypeError(f"fork size is {size!r:.60}; give a whole number") from None
        if size < 1:
            raise ValueError(f"fork size is {size}; it must be at least 1")
        refuse_offset(position_ids_offset)
        children = self._executor.fork(size, caller())
        group = ForkGroup([ProgramState(child) for child in children], self)
        self._groups.append(weakref.ref(group, self._groups.remove))
        return group

    @contextmanager
    def copy(self, position_ids_offset: Sequence[int] | None = None) -> Iterator[ProgramState]:
        """Yield a copy of this state that continues from here; this state does not change."""
        refuse_offset(position_ids_offset)
        (child,) = self.fork(1)
        yield child

    def map(self, items: Sequence[Any], program: Callable[..., Any]) -> list[Any]:
        """Run ``program(fork, item)`` for each item in parallel, on forks of this state; join them
        and return the results. An item is a dict or tuple of arguments, or the only argument."""
        own = self._executor
        threads = isinstance(own, StreamExecutor) and own.use_thread
        return mapped(self, items, program, own.run.loop if threads else None, threads)

    async def amap(self, items: Sequence[Any], program: Callable[..., Any]) -> list[Any]:
        """``map``, awaited; the program may be asynchronous."""
        return await amapped(self, items, program)

    # Looking

    def trace(self) -> Trace:
        """Return the trace of this state's run, forks included. Raise SglangError where the run was
        not recorded."""
        recording = self._executor.run.recording
        if recording is None:
            raise SglangError(
                "this run was not recorded; run(..., trace=True), or run inside sglang.tracing()"
            )
        assert isinstance(recording.trace, Trace)
        return recording.trace

    def show(self, file: TextIO | None = None) -> None:
        """Print the text so far, the model's parts marked, the failure, tokens and seconds of each
        gen, and the forks that the program still references. Neither waits nor raises."""
        from sglang.views.fork_tree import show_tree

        show_tree(self, file)

    def watch(self, file: TextIO | None = None, seconds: float = 0.1) -> None:
        """``show`` while the program runs (``run(stream=True)``), until it has ended."""
        from sglang.views.watched_state import watch

        watch(self, file, seconds)

    def _repr_html_(self) -> str:
        """Return ``show`` as HTML for a notebook."""
        from sglang.views.fork_tree import tree_page

        return tree_page(self)

    def __format__(self, spec: str) -> str:
        raise TypeError("a state cannot be formatted into a text; use s.text() or s['name']")

    def __add__(self, other: object) -> Any:
        raise TypeError("s + ... makes nothing; append with s += ...")

    def __repr__(self) -> str:
        return f"ProgramState({self._executor.stream.text[-60:]!r}, {', '.join(self.keys())})"


class ForkGroup:
    """The states of one ``fork``; what is appended to the group goes to each of them."""

    def __init__(self, states: list[ProgramState], parent: ProgramState) -> None:
        self.states = states
        self._parent = parent

    def __len__(self) -> int:
        return len(self.states)

    def __getitem__(self, index: int) -> ProgramState:
        return self.states[index]

    def __setitem__(self, index: int, value: ProgramState) -> None:
        """Makes ``forks[i] += ...`` possible."""
        if self.states[index] is not value:
            raise TypeError("the states of a fork cannot be replaced; append with forks[i] += ...")

    def __iter__(self) -> Iterator[ProgramState]:
        return iter(self.states)

    def __iadd__(self, other: object | Sequence[object] | Callable[[int], object]) -> ForkGroup:
        """Append the same expression to all, one of a list to each, or ``other(i)`` to state i."""
        parts: Sequence[object]
        if isinstance(other, (list, tuple)):
            if len(other) != len(self.states):
                raise ValueError(
                    f"a list of {len(other)} was appended to {len(self.states)} forks; "
                    "give one expression for each"
                )
            parts = other
        elif callable(other) and not isinstance(other, Node):
            parts = [other(i) for i in range(len(self.states))]
        else:
            parts = [other] * len(self.states)
        for state, part in zip(self.states, parts):
            state += part
        return self

    def join(self, mode: str = "gather_variable") -> None:
        """Bring the forks together in their parent.

        "gather_variable" waits for all; each variable that one of them has made since the fork
        becomes a list, by fork, in the parent (of a fork that did not make it, the value it began
        with, or None). Raises the first fork's ProgramError.

        "concate_and_append" does not wait: the parent goes on with what each fork has appended, one
        after the other, each encoded as if the others were not there. Backends other than the
        runtime read the texts in sequence.
        """
        if self._concatenated(mode):
            return
        for state in self.states:
            state._executor.wait()
        self._gather()

    async def ajoin(self, mode: str = "gather_variable") -> None:
        """``join``, awaited."""
        if self._concatenated(mode):
            return
        for state in self.states:
            await state._executor.await_end()
        self._gather()

    def _concatenated(self, mode: str) -> bool:
        if mode == "concate_and_append":
            executors = [state._executor for state in self.states]
            append_side_by_side(self._parent._executor, executors, caller())
            return True
        if mode != "gather_variable":
            known = "'gather_variable' or 'concate_and_append'"
            raise ValueError(f"join mode is {mode!r}; use {known}")
        return False

    def _gather(self) -> None:
        executors = [state._executor for state in self.states]
        record_join(self._parent._executor, executors, "gather_variable")
        errors = [e for state in self.states if (e := state._error()) is not None]
        if errors:
            raise errors[0]
        names = dict.fromkeys(name for e in executors for name in e.stream.made)
        for name in names:
            self._parent[name] = [e.stream.variables.get(name) for e in executors]

    def show(self, file: TextIO | None = None) -> None:
        """``show`` of the parent, its forks after it."""
        self._parent.show(file)

    def __repr__(self) -> str:
        return f"ForkGroup({len(self.states)} of {self._parent!r})"

    def __enter__(self) -> ForkGroup:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.join()
