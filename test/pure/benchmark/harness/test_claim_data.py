"""Data of the claims: what is numbered, and numbers that are read from solutions."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark.harness import data
from benchmark.harness.gsm8k import number, problems, vote
from benchmark.harness.numbered import numbered


@given(st.integers(1, 9), st.integers(1, 40), st.integers(0, 10**6))
def test_texts_repeat_only_after_all_and_with_another_number(
    texts: int, count: int, seed: int
) -> None:
    found = numbered(range(texts), count, seed)
    assert len({label for label, _ in found}) == count
    for begin in range(0, count, texts):
        part = [text for _, text in found[begin : begin + texts]]
        assert len(set(part)) == len(part)
    assert numbered(range(texts), count, seed) == found


def test_rounds_share_no_beginning() -> None:
    """A run's rounds have seeds a thousand apart; so many essays are there, or a divisor of it."""
    essays = data.records("essays.jsonl")
    rounds = (numbered(essays, 64, seed) for seed in range(0, 5000, 1000))
    found = Counter(label + essay for one in rounds for label, essay in one)
    assert max(found.values()) == 1


def test_every_problem_has_its_number() -> None:
    records = data.records("gsm8k.jsonl")
    found = problems()
    assert len(found) == len(records) == 200
    for (question, solution, value), record in zip(found, records):
        assert question == record["question"]
        assert "<<" not in solution
        assert "####" not in solution
        assert record["answer"].split()[-1].replace(",", "") == f"{value:.15g}"


@pytest.mark.parametrize(
    ("text", "value"),
    [("12 and then 1,250.50 dollars.", 1250.5), ("-7", -7.0), ("none", None), ("", None)],
)
def test_the_last_number_is_the_answer(text: str, value: float | None) -> None:
    assert number(text) == value


def test_most_votes_win_and_of_equals_the_first() -> None:
    assert vote(["so 3", "4", "it is 4", "none"]) == 4
    assert vote(["5", "6"]) == 5
    assert vote(["none", ""]) is None
