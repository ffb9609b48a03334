"""Compiling: requests whose grammar is being made, in parallel to the loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Protocol, TypeAlias

from sglang.ir.constraint import Constraint
from sglang.srt.config import Config
from sglang.srt.core.request import Request
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.engine.info import EngineInfo
from sglang.srt.grammar.grammar_compiler import GrammarCompiler
from sglang.srt.grammar.grammar_protocol import CompiledGrammar, GrammarError
from sglang.srt.grammar.schema.whitespace import whitespace_pattern

# From the number of logits and the end tokens.
MakeVocabulary: TypeAlias = Callable[[int, Sequence[int]], Vocabulary]


class Grammars(Protocol):
    """Source of grammars (``grammar.grammar_compiler.GrammarCompiler``)."""

    def submit(self, constraint: Constraint) -> Future[CompiledGrammar]: ...
    @property
    def counts(self) -> dict[str, int]: ...


class Compiling:
    """Requests by id, each with the future of its grammar."""

    def __init__(self, grammars: Grammars | None) -> None:
        self._grammars = grammars
        self._pending: dict[int, tuple[Request, Future[CompiledGrammar]]] = {}

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def counts(self) -> dict[str, int]:
        """Counts of the compiler."""
        return self._grammars.counts if self._grammars is not None else {}

    def __contains__(self, request: int) -> bool:
        return request in self._pending

    def put(self, request: Request, constraint: Constraint) -> None:
        """Request the grammar. Raises ValueError where the engine has no compiler."""
        if self._grammars is None:
            raise ValueError(f"{constraint.kind} cannot be enforced: this engine has no grammars")
        self._pending[request.id] = (request, self._grammars.submit(constraint))

    def drop(self, request: int) -> None:
        """Stop waiting. Other requests that wait for the same grammar are not affected."""
        dropped = self._pending.pop(request, None)
        if dropped is not None:
            dropped[1].cancel()

    def ready(self) -> list[tuple[Request, Exception | None]]:
        """Return requests that now have their matcher, or else the exception in place of one."""
        done = [number for number, (_, future) in self._pending.items() if future.done()]
        found: list[tuple[Request, Exception | None]] = []
        for number in done:
            request, future = self._pending.pop(number)
            try:
                request.generation.matcher = future.result().matcher()
                found.append((request, None))
            except Exception as error:  # a GrammarError, or a bug of the grammar
                found.append((request, error))
        return found


def make_compiler(
    config: Config, info: EngineInfo, vocabulary: MakeVocabulary | None
) -> GrammarCompiler | None:
    """The compiler that a configuration asks for; None where there is no vocabulary. Raises
    ValueError for a white space pattern that no JSON may have."""
    pattern = info.json_whitespace_pattern
    try:
        whitespace_pattern(pattern)
    except GrammarError as error:
        own = config.grammar.constrained_json_whitespace_pattern == "auto"
        where = "generation_config.json" if own else "--constrained-json-whitespace-pattern"
        raise ValueError(f"{where}: {error}") from None
    if vocabulary is None:
        return None
    settings = replace(config.grammar, constrained_json_whitespace_pattern=pattern)
    return GrammarCompiler(lambda: vocabulary(info.vocab_size, info.eos), settings)
