"""Bounded caches: compiled grammars, and recent failures to compile a constraint."""

from __future__ import annotations

import time
from collections import OrderedDict

from sglang.ir.constraint import Constraint
from sglang.srt.grammar.grammar_protocol import CompiledGrammar

KEPT = 256  # grammars
KEPT_BYTES = 64 << 20  # bytes of grammars (``nbytes``, if they have it) and constraint texts
FAILED = 64  # failures
FAILED_SECONDS = 60.0  # lifetime of a failure: a busy machine may have caused it


class GrammarCache:
    """LRU cache of CompiledGrammar by constraint. Not thread-safe."""

    def __init__(self, count: int = KEPT, size: int = KEPT_BYTES) -> None:
        self.count = count
        self.size = size
        self.evicted = 0
        self._grammars: OrderedDict[Constraint, CompiledGrammar] = OrderedDict()

    def __len__(self) -> int:
        return len(self._grammars)

    def get(self, key: Constraint) -> CompiledGrammar | None:
        grammar = self._grammars.get(key)
        if grammar is not None:
            self._grammars.move_to_end(key)
        return grammar

    def put(self, key: Constraint, grammar: CompiledGrammar) -> None:
        """Add a grammar and evict others. The newest grammar is kept, whatever its size."""
        self._grammars[key] = grammar
        self._grammars.move_to_end(key)
        while len(self._grammars) > 1 and (
            len(self._grammars) > self.count or self.nbytes > self.size
        ):
            self._grammars.popitem(last=False)
            self.evicted += 1

    @property
    def nbytes(self) -> int:
        """Current estimate of the bytes of all entries. Some grammars grow during use."""
        return sum(
            len(key.text) + int(getattr(grammar, "nbytes", 0))
            for key, grammar in self._grammars.items()
        )


class FailureCache:
    """Cache of error messages by constraint; evicts the oldest first. Not thread-safe."""

    def __init__(self, count: int = FAILED, seconds: float = FAILED_SECONDS) -> None:
        self.count = count
        self.seconds = seconds
        self._errors: OrderedDict[Constraint, tuple[float, str]] = OrderedDict()

    def get(self, key: Constraint) -> str | None:
        found = self._errors.get(key)
        if found is None:
            return None
        if time.monotonic() - found[0] > self.seconds:
            del self._errors[key]
            return None
        return found[1]

    def put(self, key: Constraint, error: str) -> None:
        self._errors[key] = (time.monotonic(), error)
        self._errors.move_to_end(key)
        while len(self._errors) > self.count:
            self._errors.popitem(last=False)
