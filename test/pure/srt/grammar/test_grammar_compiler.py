"""The compiler of constraints: one flight, bounded memory of what was made and what failed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.compiling import BYTES, PlanGrammar, answer, odd_compiler
from helpers.waiting import until
from sglang.ir.constraint import Constraint
from sglang.srt.config import GrammarConfig
from sglang.srt.grammar import grammar_compiler as module
from sglang.srt.grammar.compile_plan import CompilePlan
from sglang.srt.grammar.grammar_cache import FailureCache, GrammarCache
from sglang.srt.grammar.grammar_protocol import GrammarError

pytestmark = pytest.mark.slow  # starts processes


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_equal_constraints_are_compiled_once(monkeypatch: Any, tmp_path: Path) -> None:
    told, gate = tmp_path / "told", tmp_path / "gate"
    constraint = Constraint("regex", f"tell {told} gate {gate}")
    found: list[Any] = []
    with odd_compiler(monkeypatch, workers=2) as compiler:
        threads = [
            threading.Thread(target=lambda: found.append(compiler.submit(constraint)))
            for _ in range(24)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert compiler.pending == 1
        assert compiler._cache.get(constraint) is None
        cancelled = found[::3]
        assert all(waiter.cancel() for waiter in cancelled)
        gate.touch()
        grammars = {id(waiter.result(90)) for waiter in found if waiter not in cancelled}
        assert len(grammars) == 1
        assert all(waiter.cancelled() for waiter in cancelled)
        assert id(compiler.submit(constraint).result(0)) in grammars
        assert lines(told) == 1
        assert (compiler.compiled, compiler.hits, compiler.failures) == (1, 24, 0)
        assert compiler.pending == 0


def test_a_failure_reaches_everyone_and_is_remembered(monkeypatch: Any, tmp_path: Path) -> None:
    told = tmp_path / "told"
    constraint = Constraint("regex", f"tell {told} error [7]: no")
    with odd_compiler(monkeypatch) as compiler:
        errors = [compiler.submit(constraint).exception(90) for _ in range(8)]
        assert [str(error) for error in errors] == ["[7]: no"] * 8
        assert all(isinstance(error, GrammarError) for error in errors)
        assert len({id(error) for error in errors}) == 8
        assert lines(told) == 1
        assert (compiler.compiled, compiler.failures) == (0, 8)
        assert compiler._cache.get(constraint) is None
        compiler._failed.seconds = -1.0  # as if time had passed
        assert answer(compiler, constraint.text) == "[7]: no"
        assert lines(told) == 2


def test_what_nobody_waits_for_is_not_begun(monkeypatch: Any, tmp_path: Path) -> None:
    told, gate = tmp_path / "told", tmp_path / "gate"
    with odd_compiler(monkeypatch) as compiler:
        first = compiler.submit(Constraint("regex", f"gate {gate}"))
        second = compiler.submit(Constraint("regex", f"tell {told} b"))
        assert second.cancel()
        gate.touch()
        first.result(90)
        assert answer(compiler, "c") == "c"
        assert lines(told) == 0
        assert answer(compiler, f"tell {told} b") == "b"  # compiled if requested again


def test_a_cancelled_waiter_does_not_take_the_others_along(
    monkeypatch: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with odd_compiler(monkeypatch) as compiler:
        first = compiler.submit(Constraint("regex", f"gate {gate}"))
        early, late = (compiler.submit(Constraint("regex", "b")) for _ in range(2))
        early.cancel()
        gate.touch()
        assert late.result(90).path == "trie"
        assert first.result(90).path == "trie"


def test_a_callback_that_raises_harms_nobody(monkeypatch: Any, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with odd_compiler(monkeypatch) as compiler:
        first, second = (compiler.submit(Constraint("regex", f"gate {gate}")) for _ in range(2))
        first.add_done_callback(lambda future: 1 // 0)
        gate.touch()
        assert second.result(90).path == "trie"
        assert answer(compiler, "b") == "b"


@pytest.mark.parametrize(
    ("setting", "kind", "own", "seen"),
    [
        ("", "json_schema", None, ""),
        ("auto", "json_schema", None, "[ ]?"),
        ("auto", "json_schema", "", ""),
        (" ?", "json_schema", None, " ?"),
        (" ?", "json_schema", "", ""),
        (" ?", "structural_tag", r"\n", r"\n"),
        (" ?", "regex", r"\n", ""),
        (" ?", "choices", None, ""),
    ],
)  # fmt: skip
def test_whitespace_is_the_constraints_or_the_servers(
    monkeypatch: Any, setting: str, kind: str, own: str | None, seen: str
) -> None:
    config = GrammarConfig(
        grammar_backend="llguidance", constrained_json_whitespace_pattern=setting
    )
    with odd_compiler(monkeypatch, config=config) as compiler:
        grammar = compiler.submit(Constraint(kind, "arguments", own)).result(90)
        assert isinstance(grammar, PlanGrammar)
        assert grammar.answer == f"llguidance {seen}"
        effective = Constraint(kind, "arguments", seen)
        assert compiler.submit(effective).result(0) is grammar


@pytest.mark.parametrize(("jumps", "canonical"), [("exact", True), ("string", False)])
def test_string_jumps_are_not_canonical(monkeypatch: Any, jumps: str, canonical: bool) -> None:
    with odd_compiler(monkeypatch, config=GrammarConfig(jump_forward=jumps)) as compiler:
        grammar = compiler.submit(Constraint("regex", "a")).result(90)
        assert isinstance(grammar, PlanGrammar)
        assert grammar.canonical is canonical


@pytest.mark.parametrize(
    ("constraint", "error"),
    [
        (Constraint("gibberish", "a"), "kind 'gibberish'"),
        (Constraint("regex", "a" * 4097), "4097 bytes; at most 4096"),
        (Constraint("regex", "\ud800"), "lone surrogate"),
        (Constraint("json_schema", "{}", "\ud800"), "whitespace holds a lone surrogate"),
        (Constraint("json_schema", "{}", " " * 257), "257 characters; at most 256"),
    ],
)  # fmt: skip
def test_what_cannot_be_sent_is_refused_at_once(
    monkeypatch: Any, constraint: Constraint, error: str
) -> None:
    with odd_compiler(monkeypatch) as compiler:
        with pytest.raises(GrammarError, match=error):
            compiler.submit(constraint).result(0)
        assert compiler._cache.get(constraint) is None
        assert compiler.pids == []
        assert compiler.failures == 1


def test_the_vocabulary_is_asked_for_once(monkeypatch: Any) -> None:
    asked: list[str] = []

    def vocabulary() -> Any:
        asked.append(threading.current_thread().name)
        return BYTES

    with odd_compiler(monkeypatch, vocabulary, workers=2) as compiler:
        compiler.warm()
        compiler.warm()
        until(lambda: asked)
        for text in "abc":
            answer(compiler, text)
        assert len(asked) == 1
        assert asked[0].startswith("srt-compile-")


def test_a_vocabulary_that_cannot_be_made_is_an_error(monkeypatch: Any) -> None:
    asked: list[int] = []

    def vocabulary() -> Any:
        asked.append(1)
        raise KeyError("no bytes")

    with odd_compiler(monkeypatch, vocabulary, workers=2) as compiler:
        for text in "ab":
            assert "no vocabulary for constraints: KeyError('no bytes')" in answer(compiler, text)
        assert len(asked) == 1


def test_a_grammar_that_cannot_be_built_is_an_error(monkeypatch: Any) -> None:
    with odd_compiler(monkeypatch) as compiler:
        monkeypatch.setattr(
            "sglang.srt.grammar.grammar_compiler.build_grammar", lambda *_, **__: 1 // 0
        )
        assert "regex cannot be compiled: ZeroDivisionError" in answer(compiler, "a")
        monkeypatch.undo()


def test_a_library_that_panics_takes_no_worker_along(monkeypatch: Any) -> None:
    class Panic(BaseException):
        """An exception as a library in Rust raises it."""

    def build(plan: CompilePlan, *_: Any, **__: Any) -> PlanGrammar:
        if plan.strings[0] == "a":
            raise Panic("index out of range")
        return PlanGrammar(plan, True)

    with odd_compiler(monkeypatch) as compiler:
        monkeypatch.setattr(module, "build_grammar", build)
        waiter = compiler.submit(Constraint("regex", "a"))
        assert "Panic: index out of range" in str(waiter.exception(20))
        assert answer(compiler, "b") == "b"


def test_grammars_are_kept_least_recently_used_first_to_go(monkeypatch: Any) -> None:
    with odd_compiler(monkeypatch) as compiler:
        compiler._cache = GrammarCache(count=3)
        for text in "abc":
            answer(compiler, text)
        answer(compiler, "a")
        answer(compiler, "d")
        kept = [text for text in "abcd" if compiler._cache.get(Constraint("regex", text))]
        assert kept == ["a", "c", "d"]
        assert answer(compiler, "b") == "b"
        assert compiler.compiled == 5


def grammar(size: int) -> PlanGrammar:
    made = PlanGrammar(CompilePlan(), True)
    made.nbytes = size
    return made


def test_a_grammar_cache_is_bounded_by_bytes() -> None:
    cache = GrammarCache(count=100, size=1000)
    keys = [Constraint("regex", f"{number:010}") for number in range(6)]
    grown = grammar(190)
    cache.put(keys[0], grown)
    for key in keys[1:5]:
        cache.put(key, grammar(190))
    assert (len(cache), cache.nbytes, cache.evicted) == (5, 1000, 0)
    cache.get(keys[0])
    cache.put(keys[5], grammar(0))
    assert [cache.get(key) is not None for key in keys] == [True, False, True, True, True, True]
    grown.nbytes = 5000  # masks are cached as they are used
    cache.put(keys[1], grammar(1))
    assert cache.get(keys[0]) is None
    cache.put(keys[1], grammar(2000))
    assert len(cache) == 1
    assert cache.get(keys[1]) is not None


def test_failures_are_bounded_by_count_and_time(monkeypatch: Any) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    failures = FailureCache(count=2, seconds=10.0)
    keys = [Constraint("regex", text) for text in "abc"]
    for key in keys:
        failures.put(key, f"no {key.text}")
    assert [failures.get(key) for key in keys] == [None, "no b", "no c"]
    now[0] = 110.5
    assert [failures.get(key) for key in keys] == [None, None, None]
