"""Random patterns: the automaton accepts what ``re.fullmatch`` accepts, and nothing else.

``GRAMMAR_CASES=2000`` runs the big number of cases.
"""

from __future__ import annotations

import os
import random
import re
import warnings

import pytest
from helpers.patterns import SYNTAX, all_texts, members, mutated, patterns, small_pattern
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sglang.srt.grammar.character_dfa import DEAD, CharacterDfa
from sglang.srt.grammar.grammar_protocol import GrammarError
from sglang.srt.grammar.regex import BeyondBudget, InvalidPattern, compile_regex

CASES = int(os.environ.get("GRAMMAR_CASES", "150"))
FEW = settings(
    max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


def read_by_re(pattern: str) -> re.Pattern[str] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return re.compile(pattern)
        except (re.error, OverflowError, ValueError):
            return None


def compiled(pattern: str) -> CharacterDfa | None:
    """None where the language is empty."""
    try:
        return compile_regex(pattern)
    except (InvalidPattern, BeyondBudget):
        raise
    except GrammarError:
        return None


def both(pattern: str) -> tuple[CharacterDfa | None, re.Pattern[str]] | None:
    """The pattern as we read it and as ``re`` does; None where both say that it is none, or where
    it is beyond our budget."""
    expected = read_by_re(pattern)
    try:
        automaton = compiled(pattern)
    except InvalidPattern:
        assert expected is None, pattern
        return None
    except BeyondBudget:
        return None
    assert expected is not None, pattern
    return automaton, expected


def check_form(automaton: CharacterDfa) -> None:
    """Check the invariants of a CharacterDfa, and that it is minimal."""
    assert automaton.edges[0] == 0
    assert (automaton.edges[1:] > automaton.edges[:-1]).all()
    assert (automaton.labels[1:] != automaton.labels[:-1]).all()
    assert set(automaton.labels.tolist()) - {DEAD} == set(range(automaton.classes))
    for point in (0xD800, 0xDFFF):
        assert automaton.labels[automaton.edges.searchsorted(point, side="right") - 1] == DEAD
    columns = [column.tobytes() for column in automaton.next.T]
    assert len(set(columns)) == len(columns)
    table = automaton.next.tolist()
    alive = set(automaton.final.nonzero()[0].tolist())
    for _ in table:
        alive |= {state for state, row in enumerate(table) if alive & set(row)}
    assert alive == set(range(automaton.states))
    colour: list[object] = automaton.final.tolist()
    for _ in range(automaton.states):  # Moore's algorithm
        keys = [(colour[s], *(DEAD if t == DEAD else colour[t] for t in row))
                for s, row in enumerate(table)]  # fmt: skip
        number = {key: index for index, key in enumerate(dict.fromkeys(keys))}
        colour = [number[key] for key in keys]
        if len(number) == automaton.states:
            break
    assert len(set(colour)) == automaton.states


@pytest.mark.slow
@FEW
@given(patterns(), st.randoms(use_true_random=False))
def test_a_pattern_means_what_re_makes_of_it(pattern: str, rng: random.Random) -> None:
    found = both(pattern)
    if found is None:
        return
    automaton, expected = found
    alphabet = "aAb0_ -\né" + pattern
    texts = {
        "",
        "a",
        "\n",
        *("".join(rng.choices(alphabet, k=rng.randint(1, 6))) for _ in "x" * 12),
    }
    if automaton is not None:
        if automaton.states < 60:
            check_form(automaton)
        inside = list(members(automaton, rng, 8, 9))
        assert all(expected.fullmatch(text) for text in inside)
        texts |= {mutated(text, rng, alphabet) for text in inside}
    for text in texts:
        assert (automaton is not None and automaton.accepts(text)) == bool(
            expected.fullmatch(text)
        ), (pattern, text)


@pytest.mark.slow
def test_any_text_is_a_pattern_where_it_is_one_to_re() -> None:
    """Pieces of syntax in any order: most are no pattern, and the same ones as for ``re``."""
    rng = random.Random(11)
    valid = 0
    for _ in range(CASES * 20):
        pattern = "".join(rng.choices(SYNTAX, k=rng.randint(1, 9)))
        found = both(pattern)
        if found is None:
            continue
        automaton, expected = found
        valid += 1
        texts = {"", "a", "1", pattern, pattern[1:], pattern[:-1]}
        alphabet = "ab01-^ ]{\nK#" + pattern
        texts |= {"".join(rng.choices(alphabet, k=rng.randint(1, 4))) for _ in range(8)}
        for text in texts:
            got = automaton is not None and automaton.accepts(text)
            assert got == bool(expected.fullmatch(text)), (pattern, text)
    assert valid > CASES


SMALL = all_texts("ab\n ", 4)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_every_short_text_is_judged_as_by_re(seed: int) -> None:
    rng = random.Random(seed)
    judged = 0
    for _ in range(max(CASES // 2, 1)):
        pattern = small_pattern(rng)
        found = both(pattern)
        if found is None:
            continue
        automaton, expected = found
        judged += 1
        for text in SMALL:
            got = automaton is not None and automaton.accepts(text)
            assert got == bool(expected.fullmatch(text)), (pattern, text)
    assert judged > CASES // 3


ASCII_PIECES = ("a", "b", "c", ".", "[ab]", "[^a]", "[a-c]", "\\w", "\\d", "\\s", "\\W", "\\.")


def ascii_pattern(rng: random.Random, depth: int) -> str:
    draw = rng.random()
    if depth == 0 or draw < 0.3:
        return rng.choice(ASCII_PIECES)
    if draw < 0.6:
        return "".join(ascii_pattern(rng, depth - 1) for _ in range(rng.randint(1, 3)))
    if draw < 0.8:
        parts = [ascii_pattern(rng, depth - 1) for _ in range(rng.randint(2, 3))]
        return f"(?:{'|'.join(parts)})"
    return (
        f"(?:{ascii_pattern(rng, depth - 1)}){rng.choice(('*', '+', '?', '{2}', '{1,3}', '{2,}'))}"
    )


def same_language(one: CharacterDfa, other: CharacterDfa) -> bool:
    """Both being minimal: whether they are equal but for the numbers of states and classes."""
    points = sorted({*one.edges.tolist(), *other.edges.tolist()})

    def columns(automaton: CharacterDfa) -> list[int]:
        at = automaton.edges.searchsorted(points, side="right") - 1
        return automaton.labels[at].tolist()

    pairs = sorted(set(zip(columns(one), columns(other))))
    match = {0: 0}
    waiting = [0]
    while waiting:
        state = waiting.pop()
        twin = match[state]
        if one.final[state] != other.final[twin]:
            return False
        for label, column in pairs:
            after = DEAD if label == DEAD else int(one.next[state, label])
            beside = DEAD if column == DEAD else int(other.next[twin, column])
            if (after == DEAD) != (beside == DEAD):
                return False
            if after != DEAD and after not in match:
                match[after] = beside
                waiting.append(after)
            elif after != DEAD and match[after] != beside:
                return False
    return True


@pytest.mark.slow
def test_interegular_agrees_where_classes_are_ascii() -> None:
    rng = random.Random(7)
    agreed = 0
    for _ in range(CASES):
        pattern = ascii_pattern(rng, 3)
        own = compile_regex(f"(?a){pattern}")
        try:
            other = compile_regex(pattern, front="interegular")
        except BeyondBudget:
            continue
        assert same_language(own, other), pattern
        agreed += 1
    assert agreed > CASES * 0.9


def test_the_comparison_of_languages_can_fail() -> None:
    one = compile_regex("(a|b)*c")
    assert same_language(one, compile_regex("[ab]*c"))
    for pattern in ("[ab]+c", "[abd]*c", "[ab]*", "[ab]*cc?"):
        assert not same_language(one, compile_regex(pattern))
