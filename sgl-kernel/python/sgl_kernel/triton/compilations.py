"""Count of the kernels that Triton compiles in this process.

The first launch with other types, constants or alignments compiles a kernel, for seconds, or reads
it from Triton's cache on disk, for milliseconds. Both count. Hooks that were there are called too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import cache
from typing import Any

from triton import knobs


class Compilations:
    """Kernels that were compiled since this object was made.

    Attributes:
        count: how many, each variant by itself.
        seconds: time that all of them took.
        last: name of the newest.
    """

    def __init__(self) -> None:
        self.count, self.seconds, self.last = 0, 0.0, ""
        self._began = 0.0

    def begin(self, **facts: Any) -> None:
        """A hook for ``jit_cache_hook``."""
        self._began = time.perf_counter()

    def end(self, **facts: Any) -> None:
        """A hook for ``jit_post_compile_hook``."""
        self.count += 1
        self.seconds += time.perf_counter() - self._began
        self.last = facts["fn"].name


@cache
def compilations() -> Compilations:
    """The process's count, which begins with the first call."""
    found, runtime = Compilations(), knobs.runtime
    runtime.jit_cache_hook = _both(found.begin, runtime.jit_cache_hook)
    runtime.jit_post_compile_hook = _both(found.end, runtime.jit_post_compile_hook)
    return found


def _both(first: Callable[..., None], other: Callable[..., Any] | None) -> Callable[..., Any]:
    """Call both; the other one's result counts: where it is true, Triton does not compile."""

    def hook(**facts: Any) -> Any:
        first(**facts)
        return None if other is None else other(**facts)

    return hook
