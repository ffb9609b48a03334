"""Ints: the fast prefix comparison against the plain loop."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sglang.srt.core.ints import common_prefix, from_bytes, ints

TOKENS = st.lists(st.integers(0, 2), max_size=300)
ANY = st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50)


def plain(a: list[int], b: list[int], start: int = 0, offset: int = 0) -> int:
    count = 0
    for x, y in zip(a[start:], b[offset:]):
        if x != y:
            break
        count += 1
    return count


@given(TOKENS, TOKENS, st.integers(0, 310), st.integers(0, 310))
def test_common_prefix_of_random_lists(a: list[int], b: list[int], start: int, off: int) -> None:
    assert common_prefix(ints(a), ints(b), start, off) == plain(a, b, start, off)


@pytest.mark.slow
@settings(max_examples=300)
@given(st.integers(0, 200), st.integers(0, 70), TOKENS, TOKENS)
def test_common_prefix_of_lists_that_share_one(
    length: int, start: int, left: list[int], right: list[int]
) -> None:
    shared = [i % 7 for i in range(length)]
    a, b = [9] * start + shared + left, shared + right
    assert common_prefix(ints(a), ints(b), start) == plain(a, b, start)
    assert common_prefix(ints(b), ints(a), 0, start) == plain(a, b, start)


@pytest.mark.parametrize("length", [1, 15, 16, 17, 47, 48, 49, 111, 112, 113, 1000])
def test_one_difference_is_found_wherever_it_is(length: int) -> None:
    a = ints(range(length))
    assert common_prefix(a, a) == length
    for at in range(length):
        b = ints(a)
        b[at] = -1
        assert common_prefix(a, b) == at


@given(ANY)
def test_bytes_round_trip(values: list[int]) -> None:
    array = ints(values)
    assert list(from_bytes(array.tobytes())) == values
    assert array.itemsize == 4


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(OverflowError):
        ints([2**31])
    with pytest.raises(ValueError):
        from_bytes(b"\0\0\0\0\0")
