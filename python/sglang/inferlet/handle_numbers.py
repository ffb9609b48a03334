"""HandleNumbers: numbers for pages, embeddings and queues, which the program chooses itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

HANDLES = 1 << 20


class HandleNumbers:
    """Numbers below ``HANDLES``. A number that was given back is taken last."""

    def __init__(self) -> None:
        self._next = 0
        self._free: deque[int] = deque()

    def take(self, count: int) -> list[int]:
        """Return ``count`` unused handles. Raises ValueError where fewer are free."""
        fresh = min(count, HANDLES - self._next)
        if count - fresh > len(self._free):
            raise ValueError(f"{count} more handles would be more than {HANDLES}; free some first")
        found = list(range(self._next, self._next + fresh))
        self._next += fresh
        return found + [self._free.popleft() for _ in range(count - fresh)]

    def run(self, count: int) -> int:
        """The first of ``count`` numbers that follow each other. Raises ValueError."""
        if self._next + count > HANDLES:
            raise ValueError(f"{count} handles in a row would be more than {HANDLES}")
        self._next += count
        return self._next - count

    def give(self, numbers: Iterable[int]) -> None:
        self._free.extend(numbers)
