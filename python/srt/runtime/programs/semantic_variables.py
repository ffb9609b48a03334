"""Semantic variables: the inputs and outputs of calls, by ids that clients know (Parrot, 4.1)."""

from __future__ import annotations

import uuid
from typing import Any

from sglang.srt.programs.objectives import NO_CRITERIA, Criteria
from sglang.srt.requests.completion.encoder import bytes_of
from sglang.srt.runtime.programs.promises import Promise


class SemanticVariable(Promise):
    """A variable of a session.

    Attributes:
        run: id of the run whose step makes it, "" for one that a client sets.
        step: that step; -1 for none. remote: the step runs at the client, which sets the variable.
        reader: id of the first run of another submission that reads it, "" for none.
        criteria: what clients want of it so far.
        gets: requests of clients that wait for it now.
        size: bytes that its value is counted for.
    """

    __slots__ = ("criteria", "gets", "id", "name", "reader", "remote", "run", "size", "step")

    def __init__(self, name: str, run: str = "", step: int = -1, id: str = "") -> None:
        super().__init__()
        self.id, self.name = id or uuid.uuid4().hex, name
        self.run, self.step, self.reader = run, step, ""
        self.criteria: Criteria = NO_CRITERIA
        self.remote = False
        self.size = self.gets = 0

    @property
    def state(self) -> str:
        """ready, failed or pending."""
        if not self.settled:
            return "pending"
        return "ready" if self.failure is None else "failed"


def size_of(value: Any) -> int:
    """Bytes that a value is counted for, about those of its JSON text."""
    if isinstance(value, str):
        return bytes_of(value) + 2
    if isinstance(value, (list, tuple)):
        return 2 + sum(map(size_of, value)) + len(value)
    if isinstance(value, dict):
        return 2 + sum(bytes_of(key) + 4 + size_of(item) for key, item in value.items())
    return 8
