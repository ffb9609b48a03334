"""InferCept's equations (2), (4) and (5): values computed by hand, and what the paper says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.interception.waste import (
    added,
    chunks,
    waste,
    waste_chunk_discard,
    waste_preserve,
)
from sglang.srt.schedule.costs import Costs, LineFit

GPT_J = Costs(LineFit(10.0, 0.0463), LineFit(0.0, 0.04))
TOKENS = st.integers(0, 100_000)
SECONDS = st.floats(0, 1e6)
SLOPES = st.floats(1e-4, 10)
COUNTS = st.integers(1, 500)


def waste_discard(context: float, other: float, t_fwd: Callable[[float], float]) -> float:
    """WasteDiscard, equation (1): the context is computed again in one pass."""
    return t_fwd(context) * (context + other)


@pytest.mark.parametrize(
    ("context", "t_int", "expected"),
    [(0, 5.0, 0.0), (1422, 0.09, 127.98), (753, 28_600.0, 21_535_800.0)],
)
def test_preserve_has_its_tabled_values(context: int, t_int: float, expected: float) -> None:
    assert waste_preserve(context, t_int) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("context", "other", "n", "expected"),
    [
        (1000, 0, 1, 23_150.0),
        (1000, 9000, 1, 439_850.0),
        (1000, 9000, 4, 439_850.0),
        (1846, 40_000, 4, 3_497_680.6254),
    ],
)
def test_chunk_discard_has_its_tabled_values(
    context: int, other: int, n: int, expected: float
) -> None:
    found = waste_chunk_discard(context, other, n, added(GPT_J))
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("t_int", "expected"), [(0.0, 0.0), (400.0, 400_000.0), (439.85, 439_850.0), (1e9, 439_850.0)]
)
def test_waste_has_its_tabled_values(t_int: float, expected: float) -> None:
    assert waste(1000, 9000, t_int, 2, added(GPT_J)) == pytest.approx(expected, rel=1e-9)


@given(TOKENS, TOKENS, SECONDS, COUNTS, SLOPES)
def test_waste_is_the_smaller_of_two(
    context: int, other: int, t_int: float, n: int, slope: float
) -> None:
    t_fwd = added(Costs(LineFit(10.0, slope)))
    both = waste_preserve(context, t_int), waste_chunk_discard(context, other, n, t_fwd)
    assert waste(context, other, t_int, n, t_fwd) == min(both)


@given(TOKENS, TOKENS, TOKENS, SECONDS, SECONDS, COUNTS, SLOPES)
def test_waste_grows_with_context_and_time(
    context: int, more: int, other: int, t_int: float, longer: float, n: int, slope: float
) -> None:
    t_fwd = added(Costs(LineFit(10.0, slope)))
    least = waste(context, other, t_int, n, t_fwd) * (1 - 1e-12)
    assert waste(context + more, other, t_int, n, t_fwd) >= least
    assert waste(context, other, t_int + longer, n, t_fwd) >= least
    assert waste(context, other + more, t_int, n, t_fwd) >= least


@given(TOKENS, TOKENS, COUNTS, SLOPES)
def test_chunks_waste_no_more_than_one_pass(context: int, other: int, n: int, slope: float) -> None:
    """The left term of (4) is half of that of (1), the right one no larger."""
    t_fwd = added(Costs(LineFit(10.0, slope)))
    whole = waste_discard(context, other, t_fwd)
    assert waste_chunk_discard(context, other, n, t_fwd) <= whole * (1 + 1e-12)
    alone = waste_chunk_discard(context, 0, n, t_fwd)
    assert alone == pytest.approx(waste_discard(context, 0, t_fwd) / 2)


@given(TOKENS, TOKENS, SLOPES)
def test_one_chunk_is_one_pass(context: int, other: int, slope: float) -> None:
    t_fwd = added(Costs(LineFit(10.0, slope)))
    own = t_fwd(context) * context
    one = waste_chunk_discard(context, other, 1, t_fwd)
    assert one == pytest.approx(waste_discard(context, other, t_fwd) - own / 2)


def test_a_constant_part_would_break_the_bound() -> None:
    """The reason why (4) takes the added time."""
    t_fwd = GPT_J.forward.at
    assert waste_chunk_discard(100, 9000, 10, t_fwd) > waste_discard(100, 9000, t_fwd)


@given(TOKENS, st.integers(-10, 4096))
def test_chunks_fit_and_are_no_more_than_needed(context: int, chunk: int) -> None:
    n, room = chunks(context, chunk), max(chunk, 1)
    assert n * room >= context
    assert n == 1 or (n - 1) * room < context


def test_no_chunk_is_refused() -> None:
    with pytest.raises(ValueError, match="n is 0"):
        waste_chunk_discard(10, 10, 0, added(GPT_J))
