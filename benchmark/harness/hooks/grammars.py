"""Hooks on how often a grammar is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

import sglang
from sglang.ir.constraint import Constraint
from sglang.srt.grammar.grammar_compiler import GrammarCompiler

from benchmark.harness.hooks.patch import patched


@dataclass(frozen=True)
class Numbered(Constraint):
    """A constraint that equals no other."""

    number: int = 0


@contextmanager
def compiled_per_request(engine: sglang.Engine) -> Iterator[None]:
    """Every request's grammar is compiled anew, also where an equal one is being compiled or was
    compiled before. No grammar compiled without the hook, or later with it, is reused."""
    with _keyed(compiler(engine), count()):
        yield


def forget_grammars(engine: sglang.Engine) -> None:
    """Forget all compiled grammars: each is compiled again when it is next requested."""
    made = compiler(engine)
    with made._lock:
        made._cache._grammars.clear()
        made._failed._errors.clear()


def compiler(engine: sglang.Engine) -> GrammarCompiler:
    """The compiler of grammars of an engine of this process."""
    found = engine._engine._grammars
    assert found is not None, "an engine with a tokenizer compiles"
    return found


@contextmanager
def _keyed(made: GrammarCompiler, numbers: Iterator[int]) -> Iterator[None]:
    key = made._key

    def numbered(constraint: Constraint) -> Constraint:
        plain = key(constraint)
        return Numbered(plain.kind, plain.text, plain.whitespace, next(numbers))

    with patched(made, _key=numbered):
        yield
