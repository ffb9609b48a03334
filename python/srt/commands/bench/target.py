"""Target: what is measured. Three kinds, one contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.srt.commands.bench.result import BenchCall, Result


class Target:
    """Answers calls. A target that cannot take requests one by one sets ``batched`` and answers
    them all in ``answer_all``; any other answers each in ``answer``.

    Attributes:
        name: its column in the table.
        batched: only all requests at once, all of them single-turn.
    """

    name = ""
    batched = False

    async def start(self) -> None:
        """Get ready. Raises what keeps it from answering."""

    async def answer(self, call: BenchCall, result: Result) -> None:
        """Fill ``result`` in as the answer comes; trouble goes to ``result.error``."""
        raise NotImplementedError

    def answer_all(self, calls: Sequence[BenchCall], results: Sequence[Result]) -> None:
        """Fill all ``results`` in."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Empty the prefix cache, where there is one."""

    async def counters(self) -> dict[str, float]:
        """The engine's counters since its start; empty where it has none to tell."""
        return {}

    async def close(self) -> None:
        """Let go of what ``start`` took."""


def numbers(info: Any) -> dict[str, float]:
    """Every number in a nested dict by its innermost name; the first of a name counts."""
    found: dict[str, float] = {}
    queue = [info]
    while queue:
        value = queue.pop(0)
        if isinstance(value, dict):
            for name, inner in value.items():
                if isinstance(inner, (int, float)) and not isinstance(inner, bool):
                    found.setdefault(name, inner)
            queue.extend(value.values())
        elif isinstance(value, list):
            queue.extend(value)
    return found
