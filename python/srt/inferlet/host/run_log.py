"""RunLog: the answers that a run got, so that it can be computed again."""

from __future__ import annotations

from sglang.srt.inferlet.host.host_messages import LoggedTurn, digest

TURN = 128  # bytes of a turn beside its answers, about


class RunLog:
    """Turns of a run in their order, of at most ``most`` bytes, about: UTF-8 bytes of the answers,
    and ``TURN`` for each.

    Attributes:
        complete: whether it has all turns; once it has outgrown ``most`` it has none.
    """

    def __init__(self, most: int) -> None:
        self._most, self._bytes = most, 0
        self._turns: list[LoggedTurn] = []
        self.complete = True

    @property
    def turns(self) -> tuple[LoggedTurn, ...]:
        """The turns, the start first."""
        return tuple(self._turns)

    def add(self, answers: str, calls: str) -> None:
        """A turn has ended."""
        self._bytes += TURN + len(answers.encode())
        if self._bytes > self._most:
            self.complete = False
            self._turns.clear()
        if self.complete:
            self._turns.append(LoggedTurn(answers, digest(calls)))
