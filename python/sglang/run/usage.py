"""Usage: what the calls of a program, its forks included, have cost."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any


class Usage:
    """Counters of backend calls and tokens. ``cached_tokens`` are prompt tokens not computed."""

    def __init__(self) -> None:
        self.calls = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, int]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, int]) -> None:
        vars(self).update(state, _lock=threading.Lock())

    def add(self, meta: Mapping[str, Any]) -> None:
        """Count one reply by its meta_info."""
        with self._lock:
            self.calls += 1
            self.prompt_tokens += int(meta.get("prompt_tokens") or 0)
            self.cached_tokens += int(meta.get("cached_tokens") or 0)
            self.completion_tokens += int(meta.get("completion_tokens") or 0)

    def merge(self, other: Usage) -> None:
        """Add the counters of ``other``."""
        with self._lock:
            self.calls += other.calls
            self.prompt_tokens += other.prompt_tokens
            self.cached_tokens += other.cached_tokens
            self.completion_tokens += other.completion_tokens

    def __repr__(self) -> str:
        return (
            f"Usage(calls={self.calls}, prompt_tokens={self.prompt_tokens}, "
            f"cached_tokens={self.cached_tokens}, completion_tokens={self.completion_tokens})"
        )
