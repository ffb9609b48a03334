"""Target: what is measured. Three kinds, one contract."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang.srt.commands.bench.result import BenchCall, Result


class Target:
    """The system that is benchmarked. It answers each call in ``answer``; one that cannot take
    calls one by one sets ``batched``, and answers all of them in ``answer_all``.

    Attributes:
        name: its column in the table.
        batched: takes only all calls at once, and only calls of a single turn.
    """

    name = ""
    batched = False

    async def start(self) -> None:
        """Prepare to answer. Raises the error that prevents it."""

    async def answer(self, call: BenchCall, result: Result) -> None:
        """Fill ``result`` in as the answer comes; an error becomes ``result.error``."""
        raise NotImplementedError

    def answer_all(self, calls: Sequence[BenchCall], results: Sequence[Result]) -> None:
        """Fill all ``results`` in."""
        raise NotImplementedError

    async def flush(self) -> None:
        """Empty the prefix cache, where there is one."""

    async def counters(self) -> dict[str, float]:
        """The engine's counters since its start; empty where it reports none."""
        return {}

    async def close(self) -> None:
        """Release what ``start`` acquired."""


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
