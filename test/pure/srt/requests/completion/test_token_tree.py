"""Trees of tokens: each is computed once, sees its own way from the root, and reads each row."""

from __future__ import annotations

from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.requests.completion import token_tree
from sglang.srt.requests.completion.token_tree import TreeForward, most_tokens, tree_forwards
from sglang.srt.spaces.mask_runs import MOST_BITS, unpacked

ROWS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), min_size=1, max_size=30)


def value(seen: list[int], token: int) -> float:
    """A 'log-probability' that depends on all tokens before."""
    return float(hash((*seen, token)) % 1009)


def computed(forward: TreeForward, prompt: list[int], visible: int, depth: int) -> array[float]:
    """The values of the forward's targets, by its mask alone."""
    count, pairs = len(forward.tokens), forward.pairs()
    sees = unpacked(forward.mask(visible), visible, count)
    found = array("f")
    for index, token in zip(pairs[::2], pairs[1::2]):
        tokens = [*prompt[:visible], *forward.tokens]
        seen = [tokens[j] for j in range(visible + count) if sees[index, j]]
        assert forward.positions[index] == len(seen) - 1
        found.append(value(seen, token))
    assert list(pairs[::2]) == sorted(pairs[::2])
    assert set(pairs[::2]) == set(range(count))  # none is computed in vain
    return found


@given(rows=ROWS, prompt=st.lists(st.integers(0, 3), max_size=4), most=st.integers(6, 40))
def test_rows_have_the_values_of_rows_alone(
    rows: list[list[int]], prompt: list[int], most: int
) -> None:
    depth, visible = len(prompt), max(len(prompt) - 1, 0)
    root = prompt[-1] if prompt else -1
    forwards = tree_forwards(rows, root, depth, most)
    found: dict[int, list[Any]] = {number: [] for number in range(len(rows))}
    for forward in forwards:
        assert len(forward.tokens) <= most
        paths = set()
        for number, values in forward.take(computed(forward, prompt, visible, depth)):
            found[number] += values
            paths |= {tuple(rows[number][:end]) for end in range(1, len(rows[number]))}
        if len(forwards) == 1:  # each beginning that another token follows, once
            assert len(forward.tokens) == len(paths) + (root >= 0)
    first = 0 if prompt else 1
    for number, row in enumerate(rows):
        wanted = [value([*prompt, *row[:i]], row[i]) for i in range(first, len(row))]
        assert found[number] == wanted


def test_a_row_that_fits_in_no_forward() -> None:
    with pytest.raises(ValueError, match="row 1 has 7 tokens; 4 fit in one forward"):
        tree_forwards([[1, 2], [1, 2, 3, 4, 5, 6, 7]], 9, 3, 4)


@pytest.mark.parametrize("visible", [0, 10, 4000, 100_000])
def test_a_forward_fits_the_limits_of_a_space(visible: int) -> None:
    most = most_tokens(visible, 1 << 20)
    assert token_tree.MOST_BITS <= MOST_BITS
    assert 1 <= most <= token_tree.MOST_TOKENS
    assert most * (visible + most) <= MOST_BITS
    assert most_tokens(visible, visible + 3) == min(3, most)
