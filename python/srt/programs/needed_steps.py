"""Needs: which steps of a program are still needed, as others fail or are cancelled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping


class NeededSteps:
    """The steps that are needed: the last ones that make something, behind which none makes
    anything, and all that lead to them. Each end costs what it changes, over all steps the number
    of edges.

    Args:
        before: of each step those that it directly waits for, each step after them.
        makers: steps that make something.
        wanted: whether the result of a step is awaited, whatever follows it.
    """

    def __init__(
        self,
        before: Mapping[int, Collection[int]],
        makers: Collection[int],
        wanted: Callable[[int], bool],
    ) -> None:
        self._before, self._wanted = before, wanted
        self._count = dict.fromkeys(before, 0)  # needed steps directly after each
        leading: set[int] = set()  # to a step that makes something
        self.needed: set[int] = set()
        for step in reversed(list(before)):
            if step in makers and step not in leading:
                self.needed.add(step)
            if step in leading or step in makers:
                leading.update(before[step])
            if step in self.needed:
                self.needed.update(before[step])
                for earlier in before[step]:
                    self._count[earlier] += 1

    def end(self, steps: Iterable[int]) -> list[int]:
        """Note that steps will make nothing; return the steps that nothing needs any more."""
        dropped: list[int] = []
        waiting = [step for step in steps if step in self.needed]
        self.needed.difference_update(waiting)
        while waiting:
            for earlier in self._before[waiting.pop()]:
                self._count[earlier] -= 1
                if not self._count[earlier] and earlier in self.needed:
                    if self._wanted(earlier):
                        continue
                    self.needed.discard(earlier)
                    dropped.append(earlier)
                    waiting.append(earlier)
        return dropped
