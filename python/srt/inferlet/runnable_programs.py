"""RunnablePrograms: programs that have got an answer and have not made their calls, and which of
them a batch waits for. No clock: the time is an argument."""

from __future__ import annotations


class RunnablePrograms:
    """Programs by any key.

    A batch waits for the commands of runnable programs. One that takes longer than a pass is busy
    with code of its own: it is *absent* until its turn is over. Programs that wait for a message, a
    timer or an HTTP answer are not runnable at all.
    """

    def __init__(self) -> None:
        self._woken: dict[object, float] = {}  # moment of the answer, oldest first
        self._absent: set[object] = set()

    def wake(self, program: object, now: float) -> None:
        """A program gets an answer, or starts."""
        self._woken[program] = now

    def rest(self, program: object) -> None:
        """A program's turn is over."""
        self._woken.pop(program, None)
        self._absent.discard(program)

    def awaited(self, now: float, patience: float) -> int:
        """Number of programs that a batch waits for: those that were woken less than ``patience``
        seconds ago."""
        while self._woken:
            program, moment = next(iter(self._woken.items()))
            if now - moment < patience:
                break
            del self._woken[program]
            self._absent.add(program)
        return len(self._woken)

    def __len__(self) -> int:
        """Number of runnable programs, absent ones too."""
        return len(self._woken) + len(self._absent)
