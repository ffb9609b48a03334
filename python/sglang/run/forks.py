"""ForkGroup: the states of one fork, and what joins them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sglang.errors import SglangError
from sglang.ir.location import caller
from sglang.ir.nodes import Node, Parallel
from sglang.run.live_nodes import Later

if TYPE_CHECKING:
    from sglang.run.executor import StreamExecutor
    from sglang.state import ProgramState


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
            here = caller()
            executors = [state._executor for state in self.states]
            # Copies: what is appended to a fork after the join is not in it.
            copies = [executor.fork(1, here, copy=True)[0] for executor in executors]
            sources = tuple((copy, None) for copy in copies)
            self._parent._executor.submit(
                Later(sources, partial(_concatenated, self._parent._executor, executors, copies)),
                here,
            )
            return True
        if mode != "gather_variable":
            known = "'gather_variable' or 'concate_and_append'"
            raise ValueError(f"join mode is {mode!r}; use {known}")
        return False

    def _gather(self) -> None:
        executors = [state._executor for state in self.states]
        _told_joined(self._parent._executor, executors, "gather_variable")
        errors = [e for state in self.states if (e := state._error()) is not None]
        if errors:
            raise errors[0]
        names = dict.fromkeys(name for e in executors for name in e.stream.made)
        for name in names:
            self._parent[name] = [e.stream.variables.get(name) for e in executors]

    def __enter__(self) -> ForkGroup:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.join()


def _told_joined(parent: StreamExecutor, forks: Sequence[StreamExecutor], mode: str) -> None:
    if parent.track is not None:
        parent.track.joined([fork.track for fork in forks], mode)


def _concatenated(
    parent: StreamExecutor, forks: Sequence[StreamExecutor], copies: Sequence[StreamExecutor]
) -> Node:
    _told_joined(parent, forks, "concate_and_append")
    for fork, copy in zip(forks, copies):
        copy.origin = fork.origin
    return concatenation(copies)


def concatenation(forks: Sequence[StreamExecutor]) -> Node:
    """The node that appends what each fork has written since it began.

    Raises the first fork's failure, and SglangError for what cannot be put side by side.
    """
    texts, messages = [], []
    for number, fork in enumerate(forks):
        fork.check()
        stream, origin = fork.stream, fork.origin
        added = stream.messages[origin.messages :]
        if stream.role != origin.role or (added and stream.role is not None):
            raise SglangError(
                f"fork {number} ends in another turn than it began in; close the turn"
            )
        media = len(stream.media) > origin.media
        if media or len(stream.parallel) > origin.parallel:
            raise SglangError(
                f"fork {number} holds {'an image' if media else 'a join of its own'}, which cannot "
                "be joined by 'concate_and_append'; append it before the fork or use join()"
            )
        texts.append(stream.text[origin.text :])
        messages += added
    return Parallel(tuple(texts), tuple(messages))
