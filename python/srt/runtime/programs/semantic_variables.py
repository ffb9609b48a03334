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
        run: id of the run whose step sets the variable; "" if a client sets it.
        step: number of that step; -1: none. remote: the client runs the step and sets the variable.
        reader: id of the first run of another submission that reads the variable; "": none.
        criteria: performance criteria that clients have given so far.
        gets: number of client requests that wait for the variable now.
        size: bytes that are counted for the value.
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
        """State of the variable: ready, failed or pending."""
        if not self.settled:
            return "pending"
        return "ready" if self.failure is None else "failed"


def size_of(value: Any) -> int:
    """Return the bytes that are counted for a value: approximately those of its JSON text."""
    if isinstance(value, str):
        return bytes_of(value) + 2
    if isinstance(value, (list, tuple)):
        return 2 + sum(map(size_of, value)) + len(value)
    if isinstance(value, dict):
        return 2 + sum(bytes_of(key) + 4 + size_of(item) for key, item in value.items())
    return 8
