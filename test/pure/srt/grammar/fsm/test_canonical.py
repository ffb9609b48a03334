"""Canonical masks: no token of the canonical tokenisation of a legal text is ever left out."""

from __future__ import annotations

import os
import random
from collections.abc import Callable

import numpy as np
import pytest
from helpers.members import random_pattern
from helpers.vocabularies import embedded, tekken, toy
from sglang.srt.core.vocabulary import Vocabulary
from sglang.srt.grammar.fsm import FsmGrammar, TokenTable
from sglang.srt.grammar.fsm.canonical import WINDOW, Canonical
from sglang.srt.grammar.fsm.mask_cache import NARROW
from sglang.srt.grammar.regex import compile_regex

CASES = int(os.environ.get("GRAMMAR_CASES", "100"))
LOOKING_AHEAD = (112, 254, 10886, 13758)  # where the next character, or a token across, matters
NAME = r"[\w\d\s]{1,16}"
CHARACTER = rf"""\{{
    "name": "{NAME}",
    "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",
    "blood status": "(Pure-blood|Half-blood|Muggle-born)",
    "occupation": "(student|teacher|auror|ministry of magic|death eater|order of the phoenix)",
    "wand": \{{
        "wood": "{NAME}",
        "core": "{NAME}",
        "length": [0-9]{{1,2}}\.[0-9]{{0,2}}
    \}},
    "alive": "(Alive|Deceased)",
    "patronus": "{NAME}",
    "bogart": "{NAME}"
\}}"""
NAMES = ("Harry Potter", "Hermione Granger", "Luna Lovegood", "holly", "phoenix feather", "stag",
         "dragon string", "a dementor", "hawthorn", "unicorn hair", "Draco Malfoy")  # fmt: skip


def character(draw: random.Random) -> str:
    return f"""{{
    "name": "{draw.choice(NAMES)}",
    "house": "{draw.choice(("Gryffindor", "Slytherin", "Ravenclaw", "Hufflepuff"))}",
    "blood status": "{draw.choice(("Pure-blood", "Half-blood", "Muggle-born"))}",
    "occupation": "{draw.choice(("student", "auror", "death eater", "order of the phoenix"))}",
    "wand": {{
        "wood": "{draw.choice(NAMES)}",
        "core": "{draw.choice(NAMES)}",
        "length": {draw.randint(5, 15)}.{draw.choice(("", "5", "25"))}
    }},
    "alive": "{draw.choice(("Alive", "Deceased"))}",
    "patronus": "{draw.choice(NAMES)}",
    "bogart": "{draw.choice(NAMES)}"
}}"""


def ids_of(mask: bytes) -> list[int]:
    return np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")).tolist()


def follow(grammar: FsmGrammar, tokens: list[int]) -> int:
    """Take ``tokens``, each of which a mask must allow. Returns how many were sampled: not forced,
    when runs are taken at once."""
    matcher, at, sampled = grammar.matcher(), 0, 0
    while at < len(tokens):
        run = matcher.forced(64)
        assert run == tokens[at : at + len(run)]
        if not run:
            run, sampled = tokens[at : at + 1], sampled + 1
        for token in run:
            mask = matcher.mask()
            assert mask[token >> 3] >> (token & 7) & 1, (tokens, at)
            assert matcher.advance(token)
        at += len(run)
    assert matcher.accepting
    return sampled


@pytest.mark.slow
@pytest.mark.parametrize(("make", "share"), [(toy, 1.0), (embedded, 1.0), (tekken, 0.2)])
def test_members_of_random_patterns(make: Callable[[], Vocabulary], share: float) -> None:
    vocabulary = make()
    for seed in (*LOOKING_AHEAD, *range(int(share * CASES))):
        generator = random.Random(seed)
        pattern, sample = random_pattern(generator, generator.choice([2, 3, 4]))
        automaton = compile_regex(pattern)
        grammar = FsmGrammar(automaton, vocabulary)
        for _ in range(3):
            text = sample(generator)
            assert automaton.accepts(text)
            tokens = vocabulary.encode([text])[0]
            if b"".join(vocabulary.tokens[token] for token in tokens) == text.encode():
                follow(grammar, tokens)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "least"), [(embedded, 0.74), (tekken, 0.68)])
def test_most_of_the_character_is_forced(make: Callable[[], Vocabulary], least: float) -> None:
    vocabulary, draw = make(), random.Random(1)
    grammar = FsmGrammar(compile_regex(CHARACTER), vocabulary)
    plain = FsmGrammar(compile_regex(CHARACTER), vocabulary, canonical=False)
    total = sampled = loose = 0
    for _ in range(8):
        tokens = vocabulary.encode([character(draw)])[0]
        total += len(tokens)
        sampled += follow(grammar, tokens)
        loose += sum(map(bool, _forced_each(plain, tokens)))
    assert 1 - sampled / total >= least
    assert loose < total // 4  # without canonical masks almost nothing is


def _forced_each(grammar: FsmGrammar, tokens: list[int]) -> list[list[int]]:
    matcher, found = grammar.matcher(), []
    for token in tokens:
        found.append(matcher.forced(1))
        assert matcher.advance(token)
    return found


def test_tokens_that_are_not_canonical_are_recovered_from() -> None:
    vocabulary = embedded()
    numbers = TokenTable.of(vocabulary).numbers
    grammar = FsmGrammar(compile_regex(r'\{"house": "(Gryffindor|Slytherin)s*"\}'), vocabulary)
    matcher = grammar.matcher()
    for byte in b'{"hou':
        token = numbers[bytes([byte])][0]
        assert matcher.advance(token)
        assert ids_of(matcher.mask())
    text = b'{"hou'
    while not matcher.finished:
        token = ids_of(matcher.mask())[0]
        text += vocabulary.tokens[token]
        assert matcher.advance(token)
    assert text.startswith(b'{"house": "')


@pytest.mark.parametrize("change", [lambda text: " " + text, lambda text: text.replace("a", "b")])
def test_a_tokenizer_with_other_bytes_leaves_the_plain_masks(
    change: Callable[[str], str],
) -> None:
    base = embedded()
    vocabulary = Vocabulary(
        base.tokens, base.size, base.eos, base.special,
        lambda texts: base.encode([change(text) for text in texts]),
    )  # fmt: skip
    automaton = compile_regex(r'\{"a": "(a bat|a cat)+"\}')
    canonical, plain = FsmGrammar(automaton, vocabulary), FsmGrammar(automaton, base, False)
    one, other = canonical.matcher(), plain.matcher()
    draw = random.Random(3)
    while not one.finished:
        assert one.mask() == other.mask()
        token = draw.choice([id for id in ids_of(one.mask()) if id not in base.eos])
        assert one.advance(token)
        assert other.advance(token)


def test_long_words_keep_their_plain_masks() -> None:
    vocabulary = embedded()
    grammar = FsmGrammar(compile_regex(r"(ab)+c"), vocabulary)
    matcher, table, canonical = grammar.matcher(), grammar.masks.table, grammar.canonical
    assert isinstance(canonical, Canonical)
    for count in range(WINDOW + 3):
        before = canonical.filtered
        mask = matcher.mask()
        assert canonical.filtered - before == (count <= WINDOW)
        assert matcher.mask() == mask
        assert canonical.filtered - before == (count <= WINDOW)  # found, not made again
        if count > WINDOW:
            assert mask == grammar.masks.row(matcher._states[-1]).mask(table.words, table.eos)
        assert matcher.advance(table.numbers[b"ab"][0])


def test_wide_states_keep_their_plain_masks() -> None:
    grammar = FsmGrammar(compile_regex(r"[a-z]+\."), embedded())
    row, table = grammar.masks.row((0, 0)), grammar.masks.table
    assert row.ids is None
    assert len(ids_of(row.mask(table.words, table.eos))) > NARROW
    assert grammar.matcher().mask() == row.bits
    assert isinstance(grammar.canonical, Canonical)
    assert grammar.canonical.filtered == 0


@pytest.mark.slow
@pytest.mark.parametrize("make", [toy, embedded, tekken])
def test_no_token_crosses_a_boundary(make: Callable[[], Vocabulary]) -> None:
    table = TokenTable.of(make())
    assert not any(table.bounded(data, 1) for data in table.tokens if len(data) > 1)
    for text in ("ab", "a'", "a_", "'s", '"a', "  ", " a", ",\n", "\n ", "1é", "é ", "\u3000 "):
        assert not table.bounded(text.encode(), 1)
    assert table.bounded(b"ab: c", 2)
    assert not table.bounded(b"ab: c", 4)
