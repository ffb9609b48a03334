"""Grammars made to be costly: refused by a trial, or ended by a counted limit of the step."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from helpers.vocabularies import embedded, tekken
from sglang.ir.constraint import Constraint
from sglang.srt.grammar.compile_plan import build_grammar, make_plan
from sglang.srt.grammar.fsm import FsmGrammar
from sglang.srt.grammar.fsm import canonical as canonical_module
from sglang.srt.grammar.fsm.canonical import MOST_BYTES, MOST_PLACES, Canonical
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.guidance import GuidanceGrammar
from sglang.srt.grammar.guidance.guidance_tokenizer import TOKENIZERS
from sglang.srt.grammar.guidance.work_limits import RULES, limits
from sglang.srt.grammar.regex import compile_regex

# Attributes keep Lark from being rewritten. A trial text does not get past the x's.
AMBIGUOUS = "start: /x{3000}/ s | s\ns[capture]: s s s | s s | /[a-z ]/"
BEHIND = 'start: "{" s\ns[capture]: s s s | s s | /[a-z ]/'
WORDS = "the quick brown fox jumps over the lazy dog and "


def walk(text: str) -> tuple[Any, str]:
    """A matcher that has reached its limit, and its error message."""
    vocabulary = embedded()
    matcher = GuidanceGrammar(text, vocabulary).matcher()
    for token in vocabulary.encode([20 * WORDS])[0]:
        try:
            assert any(matcher.mask())
            assert matcher.advance(token)
        except GrammarError as error:
            return matcher, str(error)
    raise AssertionError("no limit was met")


def test_an_ambiguous_grammar_meets_a_limit_that_has_a_name() -> None:
    matcher, message = walk(AMBIGUOUS)
    assert f"more than {RULES.row} items" in message
    assert len(matcher._tokens) < 100


def test_a_limit_that_was_met_costs_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is compiled or walked again, however often the matcher is used."""
    calls: list[str] = []
    for name in ("_compile", "replay"):
        made = getattr(GuidanceGrammar, name)

        def counted(*args: Any, name: str = name, made: Any = made) -> Any:
            calls.append(name)
            return made(*args)

        monkeypatch.setattr(GuidanceGrammar, name, counted)
    matcher, message = walk(AMBIGUOUS)
    for one in (matcher, matcher.fork()):
        with pytest.raises(GrammarError, match="more than") as raised:
            one.advance(ord("a"))
        assert str(raised.value) == message
    assert calls == ["_compile"]
    matcher.rollback(3)  # as after a draft that went too far
    assert calls == ["_compile", "replay"]
    assert any(matcher.mask())


def test_a_mask_has_few_items() -> None:
    """A row, which no limit cuts short, is what may come on top."""
    from llguidance import LLInterpreter

    vocabulary = embedded()
    tokenizer, _ = TOKENIZERS.get(vocabulary)
    walker = LLInterpreter(tokenizer, AMBIGUOUS, enable_backtrack=False, enable_ff_tokens=False,
                           log_level=0, limits=limits())  # fmt: skip
    walker.start_without_prompt()
    items = []
    for token in vocabulary.encode([20 * WORDS])[0]:
        _, report = walker.compute_mask()
        found = json.loads(report)
        items += [part["stats"]["all_items"] for part in found["progress"] if "stats" in part]
        try:
            walker.commit_token(token)
        except ValueError:  # the row after this token is too long
            break
    else:
        raise AssertionError("no limit was met")
    assert len(items) > 5
    assert max(items) <= RULES.items + 2 * RULES.row


@pytest.mark.parametrize(
    "text",
    [
        "root ::= root root root | [a-z ]",
        'root ::= "" | [a-z ] root w\nw ::= "" | "#"',
        'root ::= a\na ::= b b | [a-z ]\nb ::= a a | a "x"? | a',
        BEHIND,
    ],
)
def test_what_grows_with_the_text_is_refused(text: str) -> None:
    error = make_plan(Constraint("ebnf", text), "auto", "").error
    assert "bytes of a trial text" in error
    assert f"more than {RULES.row} items" in error
    assert "write recursion as repetition" in error


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "[" (root ("," root)*)? "]" | [0-9]+',
        'root ::= s+\ns ::= "if(" [a-z] ")" s ("else " s)? | "{" s* "}" | [a-z] ";"',
        'root ::= "a" root "a" | "b" root "b" | ""',
        "root ::= root root root | root root | [a-z ]",
        'root ::= e\ne ::= e [-+] e | "-" e | "(" e ")" | [0-9]+',
    ],
)
def test_what_does_not_grow_is_accepted(text: str) -> None:
    plan = make_plan(Constraint("ebnf", text), "auto", "")
    assert plan.error == ""
    assert any(build_grammar(plan, embedded()).matcher().mask())


def test_rules_that_are_too_wide_are_refused() -> None:
    words = " | ".join(f'"w{i}"' for i in range(9000))
    error = make_plan(Constraint("ebnf", f'start: "x" w\nw: {words} | "(" w ")"'), "auto", "").error
    assert "its rules have 9002 alternatives, at most 8000 are possible" in error
    terminal = make_plan(Constraint("ebnf", f'start: "x" W\nW: {words.lower()}'), "auto", "")
    assert "alternatives" not in terminal.error


def test_a_canonical_mask_encodes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    places: list[int] = []
    encode, crossing, filtered = Canonical._encode, Canonical._crossing, Canonical._filter

    def encoding(self: Canonical, texts: Any) -> Any:
        whole = list(texts)
        sizes.append(sum(map(len, whole)))
        return encode(self, whole)

    def crossed(self: Canonical, *args: Any) -> Any:
        places[-1] += 1
        return crossing(self, *args)

    def filtering(self: Canonical, *args: Any) -> Any:
        places.append(0)
        return filtered(self, *args)

    monkeypatch.setattr(Canonical, "_encode", encoding)
    monkeypatch.setattr(Canonical, "_crossing", crossed)
    monkeypatch.setattr(Canonical, "_filter", filtering)
    vocabulary, chance = tekken(), random.Random(1)
    matcher = FsmGrammar(compile_regex(r"(//|/\*|\*/){1,50}"), vocabulary).matcher()
    while not matcher.finished:
        mask = np.frombuffer(matcher.mask(), np.uint8)
        ids = np.flatnonzero(np.unpackbits(mask, bitorder="little"))
        ids = ids[~np.isin(ids, vocabulary.eos)]
        some = [chance.choice(ids) for _ in range(6)]
        assert matcher.advance(int(min(some, key=lambda token: len(vocabulary.tokens[token]))))
    assert len(places) > 3
    assert max(places) <= MOST_PLACES
    assert max(sizes) <= MOST_BYTES + canonical_module.BODY * 64
