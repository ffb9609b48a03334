"""Random constraints of every kind: a grammar that can be walked, or an error; no crash, no hang.

``GRAMMAR_CASES=2000`` tries that many of each kind.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.vocabularies import embedded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from sglang.ir.constraint import KINDS, Constraint
from sglang.srt.config import GrammarConfig
from sglang.srt.grammar.compile_worker import KEPT
from sglang.srt.grammar.grammar_compiler import GrammarCompiler
from sglang.srt.grammar.grammar_protocol import CompiledGrammar, GrammarError

pytestmark = pytest.mark.slow  # starts processes

CASES = int(os.environ.get("GRAMMAR_CASES", "40"))
MESSAGE = 600  # characters of an error
SECONDS = 20.0  # a busy machine must not turn a good constraint into a late one
many = settings(
    max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True
)


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(embedded, GrammarConfig(), seconds=SECONDS)
    yield made
    assert made.killed == 0
    assert made.submit(Constraint("regex", "[a-z]{3}[0-9]")).result(120).path == "fsm"
    assert all(resident(pid) < 2 * KEPT for pid in made.pids)
    made.close()


def resident(pid: int) -> int:
    """Bytes of memory, or 0 where the platform does not tell."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def walk(grammar: CompiledGrammar, seed: int) -> None:
    """A few random steps: what a mask allows can be taken, and undone."""
    draw, vocabulary = random.Random(seed), embedded()
    matcher = grammar.matcher()
    first = matcher.mask()
    steps = 0
    for _ in range(5):
        mask = int.from_bytes(matcher.mask(), "little")
        allowed = [token for token in range(vocabulary.size) if mask >> token & 1]
        allowed = [token for token in allowed if token not in vocabulary.eos]
        if not allowed:
            break
        assert matcher.advance(draw.choice(allowed))
        steps += 1
    matcher.rollback(steps)
    assert matcher.mask() == first


def ends(compiler: GrammarCompiler, kind: str, text: str, whitespace: str | None = None) -> bool:
    """Whether it became a grammar."""
    message = ""
    try:
        grammar = compiler.submit(Constraint(kind, text, whitespace)).result(120)
        walk(grammar, len(text))
    except GrammarError as error:
        message = str(error)
    if not message:
        return True
    assert 5 < len(message) < MESSAGE, message
    assert "ends the compile process" not in message, (kind, text)
    return False


# -- generated inputs ----------------------------------------------------------------------------

PIECES = ["a", "b", "é", "日", "🙂", ".", r"\d", r"\w", r"\s", r"\W", r"\b", "^", "$", "(", ")",
          "(?:", "(?P<n>", "(?i)", "(?=", "(?!", "(?<=", "(?P=n)", r"\1", "|", "*", "+", "?", "{2}",
          "{,3}", "{1,40}", "{2,}", "[", "]", "[^", "a-z", "-", r"\]", r"\x41", r"\u20ac", r"\p{L}",
          r"\\", "\\", "\n", "\0", "*?", "++", " ", "#", "/", '"', "&&", "{"]  # fmt: skip
patterns = st.lists(st.sampled_from(PIECES), max_size=24).map("".join)
sound = st.recursive(
    st.sampled_from(["a", "é", r"\d", r"\w", "[^a-c]", ".", "ab|ba", "日本", r"\s?"]),
    lambda inner: st.builds(
        lambda parts, count: "(?:" + "".join(parts) + ")" + count,
        st.lists(inner, min_size=1, max_size=4),
        st.sampled_from(["", "*", "+", "?", "{2,5}", "{0,30}", "{40}"]),
    ),
    max_leaves=12,
)

numbers = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), numbers,
    st.text(max_size=8),
)  # fmt: skip
TYPES = ["object", "array", "string", "integer", "number", "boolean", "null", "gibberish"]
sizes = st.one_of(st.integers(-2, 50), st.integers(-(2**70), 2**70))


def keywords(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
    """Keywords, most with what belongs to them."""
    names = st.sampled_from(["a", "b", "é", "", "$ref", "a/b~c"])
    several = st.lists(inner, max_size=3)
    known: dict[str, SearchStrategy[Any]] = {
        "type": st.one_of(st.sampled_from(TYPES), st.lists(st.sampled_from(TYPES), max_size=3)),
        "properties": st.dictionaries(names, inner, max_size=4),
        "patternProperties": st.dictionaries(patterns, inner, max_size=2),
        "additionalProperties": inner,
        "required": st.lists(names, max_size=3),
        "items": inner,
        "prefixItems": several,
        "contains": inner,
        "uniqueItems": st.booleans(),
        "enum": st.lists(scalars, max_size=4),
        "const": scalars,
        "allOf": several, "anyOf": several, "oneOf": several, "not": inner, "if": inner,
        "$ref": st.sampled_from(["#", "#/$defs/a", "#/properties/a", "#/nowhere", "other", "##"]),
        "$defs": st.dictionaries(names, inner, max_size=2),
        "pattern": st.one_of(patterns, sound),
        "format": st.sampled_from(["date", "email", "uuid", "ipv6", "uri", "gibberish"]),
        "multipleOf": st.one_of(numbers, st.integers(-3, 10)),
        "title": st.text(max_size=4),
    }  # fmt: skip
    for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        known[name] = st.one_of(sizes, numbers)
    for name in ("minLength", "maxLength", "minItems", "maxItems", "minProperties",
                 "maxProperties"):  # fmt: skip
        known[name] = sizes
    right = st.fixed_dictionaries({}, optional=known)
    few = st.lists(st.sampled_from(sorted(known)), max_size=5, unique=True).flatmap(
        lambda chosen: st.fixed_dictionaries({name: known[name] for name in chosen})
    )
    wrong = st.dictionaries(st.sampled_from(sorted(known)), st.one_of(scalars, inner), max_size=3)
    return st.one_of(few, few, few, wrong, right)


schemas: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.booleans(), st.just({})), keywords, max_leaves=10
)

LARK = ["start", "a", "B", ":", "|", "(", ")", "[", "]", "*", "+", "?", '"x"', '"日"', "/[a-z]+/",
        "/(a|b)*/", "\n", "~3", "{2,4}", "%json {}", "%ignore B", "<|im_end|>", "->", "::=", "root",
        '"', "/", "#", "//", "!", ".", "@", "&"]  # fmt: skip
loose = st.lists(st.sampled_from(LARK), max_size=20).map(" ".join)
bodies = st.lists(
    st.lists(
        st.sampled_from(['"x"', '"yz"', "/[a-z]{1,3}/", "a", "b", "start", "(a b)?", '("p" | b)*',
                         "B", '%json {"type": "integer"}']),
        max_size=4,
    ).map(" ".join),
    min_size=1, max_size=3,
).map(" | ".join)  # fmt: skip
tidy = st.tuples(bodies, bodies, bodies).map(
    lambda rules: f'start: {rules[0]}\na: {rules[1]}\nb: {rules[2]}\nB: "q" | /[0-9]/'
)
terms = st.lists(
    st.sampled_from(['"x"', '"yz"', "[a-z]+", "a", "b", "root", '("p" | b)*', "[^0-9]{1,3}", "."]),
    min_size=1, max_size=4,
).map(" ".join)  # fmt: skip
sides = st.lists(terms, min_size=1, max_size=3).map(" | ".join)
gbnf = st.tuples(sides, sides, sides).map(
    lambda rules: f"root ::= {rules[0]}\na ::= {rules[1]}\nb ::= {rules[2]}"
)

simple = st.sampled_from([True, {}, {"type": "integer"}, {"enum": ["a", "b"]}])
wrong_tags = st.fixed_dictionaries(
    {},
    optional={
        "structures": st.one_of(scalars, st.lists(scalars, max_size=2)),
        "triggers": st.one_of(scalars, st.lists(st.text(max_size=3), max_size=3)),
        "type": st.text(max_size=3),
    },
)
right_tags = st.fixed_dictionaries({
    "structures": st.lists(
        st.fixed_dictionaries({
            "begin": st.text(max_size=4).map(lambda text: "<" + text),
            "schema": st.one_of(simple, schemas),
            "end": st.text(min_size=1, max_size=4),
        }),
        min_size=1, max_size=3,
    ),
    "triggers": st.sampled_from([["<"], ["<"], ["<", "x"], ["<", "<a"]]),
})  # fmt: skip
tags = st.one_of(right_tags, right_tags, wrong_tags)
characters = st.characters()  # surrogates, too


# -- the tests -----------------------------------------------------------------------------------


@many
@given(st.one_of(patterns, sound))
def test_patterns(compiler: GrammarCompiler, text: str) -> None:
    ends(compiler, "regex", text)


@many
@given(schemas, st.sampled_from([None, "", r"\s?", r"[ \n]{0,4}", "(", "a", " *"]))
def test_schemas(compiler: GrammarCompiler, schema: Any, whitespace: str | None) -> None:
    ends(compiler, "json_schema", json.dumps(schema), whitespace)


@many
@given(st.one_of(loose, tidy, gbnf))
def test_grammars(compiler: GrammarCompiler, text: str) -> None:
    ends(compiler, "ebnf", text)


@many
@given(tags)
def test_structural_tags(compiler: GrammarCompiler, tag: Any) -> None:
    ends(compiler, "structural_tag", json.dumps(tag))


@many
@given(st.lists(st.one_of(st.text(max_size=6), scalars), max_size=12))
def test_choices(compiler: GrammarCompiler, choices: Any) -> None:
    ends(compiler, "choices", json.dumps(choices))


@many
@given(st.sampled_from(KINDS), st.one_of(st.binary(max_size=60), st.text(characters, max_size=30)))
def test_noise(compiler: GrammarCompiler, kind: str, noise: str | bytes) -> None:
    ends(compiler, kind, noise if isinstance(noise, str) else noise.decode("latin-1"))


def test_the_fuzz_finds_what_is_sound(compiler: GrammarCompiler) -> None:
    """A generator that only makes rubbish would test nothing."""
    draw = random.Random(0)
    found = 0
    for number in range(20):
        width = draw.randrange(1, 9)
        found += ends(compiler, "regex", rf"(?:\w{{1,{width}}}\s?){{1,3}}[a-z]{number}")
        found += ends(compiler, "json_schema", json.dumps({"type": "string", "maxLength": number}))
    assert found == 40
