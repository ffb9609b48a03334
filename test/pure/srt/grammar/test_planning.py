"""Choice of the path that carries a constraint, and refusals before any tokenizer is used."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

import pytest
from helpers.compiling import BYTES
from sglang.ir.constraint import MAX_CHOICE, MAX_CHOICES, Constraint
from sglang.srt.config.sections import GRAMMAR_BACKENDS
from sglang.srt.grammar.character_dfa import CharacterDfa
from sglang.srt.grammar.compile_plan import CompilePlan, build_grammar, make_plan
from sglang.srt.grammar.grammar_protocol import GrammarError


@pytest.mark.parametrize("backend", GRAMMAR_BACKENDS)
def test_choices_are_a_trie(backend: str) -> None:
    choices = ["yes", "no", "日本", "yes!"]
    plan = make_plan(Constraint("choices", json.dumps(choices)), backend, "")
    assert (plan.path, plan.strings, plan.error) == ("trie", tuple(choices), "")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("[]", "choices has 0 entries; give 1 to 10000."),
        (json.dumps([str(n) for n in range(MAX_CHOICES + 1)]), "choices has 10001 entries"),
        ('["a", ""]', "choices[1] is empty"),
        (json.dumps(["a", "é" * 3000]), f"choices[1] has 6000 bytes; at most {MAX_CHOICE}"),
        ('["a", "b", "a"]', "choices[2] is the same as choices[0]"),
        ('["a", 1]', "choices must be a JSON list of strings, not [\"a\", 1]"),
        ('{"a": 1}', "choices must be a JSON list of strings"),
        ('["a"', "choices must be a JSON list of strings"),
        ('["\\ud800"]', "choices must be a JSON list of strings"),
        ("[" * 100_000, "choices must be a JSON list of strings"),
        ("", "choices must be a JSON list of strings"),
    ],
)  # fmt: skip
def test_choices_that_are_none(text: str, error: str) -> None:
    plan = make_plan(Constraint("choices", text), "auto", "")
    assert error in plan.error
    assert (plan.path, plan.strings) == ("", ())


def test_ten_thousand_choices() -> None:
    choices = [f"choice {number}" for number in range(MAX_CHOICES)]
    assert make_plan(Constraint("choices", json.dumps(choices)), "auto", "").strings == tuple(
        choices
    )


def regex(pattern: str, backend: str = "auto") -> Any:
    return make_plan(Constraint("regex", pattern), backend, "")


LARGE = r"(?:(?:\w{1,60}\s){1,60},){1,60}"  # beyond the budget of our automaton


@pytest.mark.parametrize(
    ("pattern", "backend", "path"),
    [
        ("(yes|no)!?", "auto", "trie"),
        ("(yes|no)!?", "fsm", "trie"),
        ("(yes|no)!?", "interegular", "trie"),
        ("(yes|no)!?", "llguidance", "llguidance"),
        ("(yes|no)!?", "outlines", "outlines"),
        ("", "auto", "trie"),
        ("a?", "auto", "trie"),
        (r"\w+", "auto", "fsm"),
        (r"\w+", "fsm", "fsm"),
        (r"[a-z]+", "interegular", "fsm"),
        (r"\w+", "llguidance", "llguidance"),
        ("[a-z]+", "outlines", "outlines"),
        (LARGE, "auto", "llguidance"),
    ],
)  # fmt: skip
def test_the_path_of_a_pattern(pattern: str, backend: str, path: str) -> None:
    plan = regex(pattern, backend)
    assert (plan.path, plan.error) == (path, "")


@pytest.mark.parametrize(
    ("pattern", "backend", "error"),
    [
        (LARGE, "fsm", "regex"),
        (LARGE, "interegular", "regex"),
        (r"(a)\1", "auto", "back-reference"),
        (LARGE + r"\b\w", "auto", "regex"),  # llguidance has no such assertion
        ("a(", "auto", "regex[1]"),
        ("a(", "llguidance", "regex[1]"),
        ("a(", "outlines", "regex"),
        (r"[^\s\S]", "auto", "matches nothing"),
    ],
)  # fmt: skip
def test_patterns_that_are_refused(pattern: str, backend: str, error: str) -> None:
    plan = regex(pattern, backend)
    assert error in plan.error
    assert plan.path == ""


def test_a_plan_carries_the_language() -> None:
    plan = regex("(yes|no)!?")
    assert sorted(plan.strings) == ["no", "no!", "yes", "yes!"]
    automaton = CharacterDfa.unpack(regex(r"\d+(é|🙂)*").data)
    for text in ["1", "12é", "٣🙂é", "", "é1"]:
        assert automaton.accepts(text) == bool(re.fullmatch(r"\d+(é|🙂)*", text))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("json_schema", '{"type": "integer"}'),
        ("ebnf", 'start: "a"+'),
        ("ebnf", 'root ::= "a" root | "b"'),
        ("structural_tag", '{"structures": [{"begin": "<a>", "schema": {}, "end": "</a>"}],'
         ' "triggers": ["<a"]}'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["auto", "fsm", "interegular", "llguidance"])
def test_the_rest_is_llguidances(kind: str, text: str, backend: str) -> None:
    plan = make_plan(Constraint(kind, text), backend, "")
    assert (plan.path, plan.error) == ("llguidance", "")


def test_outlines_carries_schemas() -> None:
    schema = Constraint("json_schema", '{"type": "integer"}')
    assert make_plan(schema, "outlines", "").path == "outlines"
    assert make_plan(Constraint("ebnf", 'start: "a"'), "outlines", "").path == "llguidance"


def test_an_unknown_kind_is_an_error() -> None:
    assert "kind 'x'" in make_plan(Constraint("x", "a"), "auto", "").error


def accepts(grammar: Any, text: str) -> bool:
    matcher = grammar.matcher()
    return all(matcher.advance(byte) for byte in text.encode()) and bool(matcher.accepting)


PATTERNS = {
    r"\w{1,3}\s\d": "ß\x1c٣",
    "(?i)straße|k+": "STRAßE",
    "[^a-c\n]{2}": "🙂-",
    ".{1,2}": "\r\u2028",
    r"(a|b)*?c{2,}": "abcc",
    "^a|b$": "b",
    r"\S[^\W\d_]": "🙂ß",
    "": "",
    "(|a)b?": "ab",
    r"[\d\-\]/]{1,2}": "/٣",
    'é/"\\\\': 'é/"\\',
    r"\x00|\n{0,2}": "\n\n",
    "(?s).": "\n",
    "[🙂-🙆]": "🙃",
    r"(ab){2}|(?a:\w)": "abab",
}  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("backend", ["auto", "llguidance"])
def test_every_path_reads_a_pattern_as_re_does(pattern: str, backend: str) -> None:
    plan = regex(pattern, backend)
    assert plan.error == ""
    grammar = build_grammar(plan, BYTES)
    assert accepts(grammar, PATTERNS[pattern])
    draw, expected = random.Random(0), re.compile(pattern)
    characters = 'abcKkſK\n ٣1_é/"\\-]ßsS🙂\0\u3000\x1c\u200d'
    for _ in range(400):
        sample = "".join(draw.choices(characters, k=draw.randrange(4)))
        matches = bool(expected.fullmatch(sample))
        assert accepts(grammar, sample) == matches, (pattern, sample)


def test_a_grammar_that_nothing_can_begin_is_refused() -> None:
    few = replace(BYTES, tokens=[b"a", b"b", b"", b""], size=4, eos=(3,), special=frozenset([3]),
                  encode=lambda texts: [[] for _ in texts])  # fmt: skip
    with pytest.raises(GrammarError, match="no token may begin it"):
        build_grammar(regex("[cd]+x"), few)
    assert build_grammar(regex("[ac]+"), few).path == "fsm"
    circle = make_plan(Constraint("ebnf", "start: other\nother: start"), "auto", "")
    assert "no text satisfies it" in circle.error


@pytest.mark.slow
def test_a_pattern_whose_masks_cost_too_much_is_refused() -> None:
    """llguidance compiles it, and gives up a dozen characters later."""
    assert "20000 states" in make_plan(regex_of("(((.{1,30}){1,30}){1,30})"), "auto", "").error
    assert "grammar" in make_plan(regex_of("(((.{1,30}){1,30}){1,30})"), "llguidance", "").error
    assert make_plan(regex_of("(.*a.{18}){3}"), "auto", "").path == "llguidance"


def regex_of(pattern: str) -> Constraint:
    return Constraint("regex", pattern)


@pytest.mark.parametrize(
    "plan", [CompilePlan(error="no"), CompilePlan(path="gibberish"), CompilePlan()]
)
def test_a_plan_that_is_none_builds_nothing(plan: CompilePlan) -> None:
    with pytest.raises(GrammarError):
        build_grammar(plan, BYTES)
