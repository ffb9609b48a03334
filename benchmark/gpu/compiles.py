"""Compiles: what Triton compiles while something runs.

A variant of a kernel that a pass needs first stalls that pass, for seconds where it is compiled and
for milliseconds where it is read from Triton's cache. After start there should be none.
"""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Any


class Compiles:
    """Counts variants within a ``with`` block. Empty without Triton and in its interpreter.

    Attributes:
        fresh: compiled, by kernel.
        read: read from the cache on disk, by kernel.
        seconds: spent compiling.
    """

    def __init__(self) -> None:
        self.fresh: Counter[str] = Counter()
        self.read: Counter[str] = Counter()
        self.seconds = 0.0
        self._before: Any = None

    def __enter__(self) -> Compiles:
        if (knobs := _knobs()) is not None:
            self._before, knobs.compilation.listener = knobs.compilation.listener, self.heard
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if (knobs := _knobs()) is not None:
            knobs.compilation.listener = self._before

    def heard(self, *, metadata: Any, times: Any, cache_hit: bool, **others: Any) -> None:
        """Triton's listener: one variant was compiled or read."""
        name = str(metadata.get("name", "?"))
        (self.read if cache_hit else self.fresh)[name] += 1
        self.seconds += 0.0 if cache_hit else times.total / 1e6

    @property
    def text(self) -> str:
        """Kernels with their counts."""
        both = self.fresh + self.read
        return ", ".join(f"{name} {count}" for name, count in sorted(both.items())) or "none"


def _knobs() -> Any:
    try:
        from triton import knobs
    except ImportError:  # no Triton, or one before 3.4
        return None
    return knobs
