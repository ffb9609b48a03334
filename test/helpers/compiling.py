"""Compilers for tests: with an odd planner, and with grammars that are plans."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sglang.ir.constraint import Constraint
from sglang.srt.config import GrammarConfig
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar import grammar_compiler as module
from sglang.srt.grammar.compile_plan import CompilePlan
from sglang.srt.grammar.grammar_compiler import GrammarCompiler
from sglang.srt.grammar.grammar_protocol import CompilerBusy

ODD = "helpers.odd_planner:make_plan"
BYTES = Vocabulary(
    tokens=[bytes([byte]) for byte in range(256)] + [b""],
    size=257,
    eos=(256,),
    special=frozenset([256]),
    encode=lambda texts: [list(text.encode()) for text in texts],
)


class PlanGrammar:
    """Stands for a grammar; no test uses its matcher."""

    def __init__(self, plan: CompilePlan, canonical: bool) -> None:
        self.plan = plan
        self.canonical = canonical
        self.nbytes = 0

    @property
    def path(self) -> str:
        return self.plan.path

    @property
    def answer(self) -> str:
        return self.plan.strings[0]

    def matcher(self) -> Any:
        raise NotImplementedError


def build_nothing(plan: CompilePlan, vocabulary: Vocabulary, canonical: bool = True) -> PlanGrammar:
    return PlanGrammar(plan, canonical)


@contextmanager
def odd_compiler(
    monkeypatch: Any, vocabulary: Callable[[], Vocabulary] = lambda: BYTES, **options: Any
) -> Iterator[GrammarCompiler]:
    """A compiler whose children run ``odd_planner``. A plan may take 60 s of processor time and
    90 s of waiting, unless ``seconds`` and ``patience`` say otherwise."""
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    monkeypatch.setattr(module, "build_grammar", build_nothing)
    monkeypatch.setattr(module, "warm_vocabulary", lambda vocabulary: None)
    options = {"planner": ODD, "seconds": 60.0, "patience": 90.0, "workers": 1, **options}
    config = options.pop("config", GrammarConfig())
    compiler = GrammarCompiler(vocabulary, config, **options)
    try:
        yield compiler
    finally:
        compiler.close()


def answer(compiler: GrammarCompiler, text: str, kind: str = "regex") -> str:
    """Answer of the odd planner, or the error's text."""
    try:
        grammar = compiler.submit(Constraint(kind, text)).result(90)
    except (ValueError, CompilerBusy) as error:
        return str(error)
    assert isinstance(grammar, PlanGrammar)
    return grammar.answer


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is not yet waited for does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))
