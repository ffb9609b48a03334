"""ProgramState: the ``s`` of a program, and ForkGroup: several of them, forked from one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sglang.errors import Location, Unsupported
from sglang.ir import Node, RoleBegin, RoleEnd, ScopeBegin, ScopeEnd, SetVariable, node_of
from sglang.usage import Usage

if TYPE_CHECKING:
    import asyncio

    from sglang.executor import StreamExecutor


def caller() -> Location:
    """The innermost line of the stack that is not part of this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_globals.get("__name__", "").startswith("sglang.")
        or frame.f_code.co_filename == contextlib.__file__
    ):
        frame = frame.f_back
    return Location(frame.f_code.co_filename, frame.f_lineno)


class ProgramState:
    """What a program appends to and reads from.

    Appending (``s += ...``) never waits for the model; reading a variable or the text does, and
    raises ProgramError, with the line of the ``s += ...``, where it failed.
    """

    ret_value: Any = None

    def __init__(self, executor: StreamExecutor) -> None:
        self._executor = executor

    def __iadd__(self, other: object) -> ProgramState:
        self._executor.submit(node_of(other), caller())
        return self

    # Variables

    def __getitem__(self, name: str) -> Any:
        return self._executor.value(name)

    def __setitem__(self, name: str, value: Any) -> None:
        self._executor.submit(SetVariable(name, value), caller())

    def __contains__(self, name: str) -> bool:
        """Whether the variable exists or is being made; does not wait."""
        return self._executor.declared(name)

    def get_var(self, name: str) -> Any:
        """``s[name]``."""
        return self[name]

    def set_var(self, name: str, value: Any) -> None:
        """``s[name] = value``."""
        self[name] = value

    def get_meta_info(self, name: str) -> Any:
        """meta_info of the variable's generation or selection (a list of them where n > 1)."""
        return self._executor.meta(name)

    @contextmanager
    def var_scope(self, name: str) -> Iterator[ProgramState]:
        """What is appended inside also becomes variable ``name``."""
        self._executor.submit(ScopeBegin(name), caller())
        try:
            yield self
        finally:
            self._executor.submit(ScopeEnd(name), caller())

    # Text

    def text(self) -> str:
        """Everything the model was shown and wrote, chat template included. Waits; raises."""
        self._executor.wait()
        self._executor.check()
        return self._executor.stream.text

    def messages(self) -> list[dict[str, str]]:
        """Finished turns as ``{"role", "content"}``. Waits; raises."""
        self._executor.wait()
        self._executor.check()
        return list(self._executor.stream.messages)

    def text_iter(self, var: str | None = None) -> Iterator[str]:
        """Pieces of the text, or of one variable, as they come (with ``run(stream=True)``)."""
        shown = 0
        for text, _ in self._executor.watch(var):
            if len(text) > shown:
                yield text[shown:]
                shown = len(text)

    async def text_async_iter(
        self, var: str | None = None, return_meta_data: bool = False
    ) -> AsyncIterator[Any]:
        """``text_iter`` for a running event loop, using no thread.

        With ``return_meta_data`` (which needs ``var``) the items are ``(piece, meta_info)``.
        """
        if return_meta_data and var is None:
            raise ValueError("return_meta_data needs var, the variable whose meta_info is meant")
        import asyncio

        loop, changed, shown = asyncio.get_running_loop(), asyncio.Event(), 0
        stop = self._executor.listen(lambda: _wake(loop, changed))
        try:
            while True:
                changed.clear()
                text, done = self._executor.snapshot(var)
                if len(text) > shown:
                    piece, shown = text[shown:], len(text)
                    meta = self._executor.stream.meta.get(var or "", {})
                    yield (piece, meta) if return_meta_data else piece
                if done:
                    return
                await changed.wait()
        finally:
            stop()

    # Waiting

    def sync(self) -> None:
        """Wait until everything appended so far is done, or has failed."""
        self._executor.wait()

    def error(self) -> BaseException | None:
        """Wait, and give what reading would raise, or None."""
        self._executor.wait()
        failure = self._executor.failure
        return failure.exception() if failure else None

    @property
    def usage(self) -> Usage:
        """Calls and tokens of the program so far, forks included."""
        return self._executor.run.usage

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
        """``size`` states that go on from here, in parallel. Does not wait.

        More than one first has the backend compute and cache the text so far.
        """
        if size < 1:
            raise ValueError(f"fork size is {size}; it must be at least 1")
        if position_ids_offset is not None:
            raise Unsupported("position_ids_offset is not supported; leave it out")
        children = self._executor.fork(size, caller())
        return ForkGroup([ProgramState(child) for child in children], self)

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """A state that goes on from here on its own; this one does not see what it appends."""
        (child,) = self.fork(1)
        yield child

    def __repr__(self) -> str:
        return f"ProgramState({self._executor.stream.text[-60:]!r})"


def _wake(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(event.set)


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
        """Wait for all; each variable they made becomes a list, by fork, in the parent.

        A fork that did not make the variable gives None. Raises the first fork's ProgramError.
        """
        if mode == "concate_and_append":
            raise Unsupported(
                "join('concate_and_append') needs a backend that can concatenate computed states, "
                "and none can yet; use join() and append the texts: s += s['x'][0] + s['x'][1]"
            )
        if mode != "gather_variable":
            raise ValueError(f"join mode is {mode!r}; use 'gather_variable'")
        executors = [state._executor for state in self.states]
        for executor in executors:
            executor.wait()
        errors: list[BaseException] = [e for s in self.states if (e := s.error()) is not None]
        if errors:
            raise errors[0]
        names = dict.fromkeys(
            name for e in executors for name in e.stream.variables if name not in e.inherited
        )
        for name in names:
            self._parent[name] = [e.stream.variables.get(name) for e in executors]

    def __enter__(self) -> ForkGroup:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.join()
