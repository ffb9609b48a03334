"""Mask runs: what the rows see together is what the mask says."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.spaces.mask_runs import MOST_BITS, mask_runs, unpacked


def _packed(sees: np.ndarray) -> bytes:
    return np.packbits(sees, axis=1, bitorder="little").tobytes()


@given(st.data())
def test_runs_show_each_token_what_the_mask_says(data: st.DataObject) -> None:
    visible, count = data.draw(st.integers(0, 9)), data.draw(st.integers(1, 9))
    bits = data.draw(st.lists(st.booleans(), min_size=1, max_size=40))
    wanted = np.resize(np.array(bits), (count, visible + count))
    runs = mask_runs(_packed(wanted), visible, count)
    assert [run.first for run in runs] == [0, *(run.last for run in runs[:-1])]
    assert runs[-1].last == count
    for run in runs:
        for token in range(run.first, run.last):
            seen = {*run.seen.tolist(), *range(visible + run.first, visible + token + 1)}
            own = {j for j in range(visible + token) if wanted[token, j]} | {visible + token}
            assert seen == own
    # Two rows that could be one are one.
    for before, run in pairwise(runs):
        seen = {*before.seen.tolist(), *range(visible + before.first, visible + before.last)}
        assert seen != set(run.seen.tolist())


def test_no_mask_and_a_full_one_are_one_run() -> None:
    full = _packed(np.ones((3, 5), dtype=bool))
    for mask in (b"", full):
        (run,) = mask_runs(mask, 2, 3)
        assert (run.first, run.last, run.seen.tolist()) == (0, 3, [0, 1])


def test_a_later_token_is_never_seen_and_the_own_bit_is_implied() -> None:
    sees = unpacked(b"\x00\xff"[::-1], 0, 2)
    assert sees.tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize(
    ("mask", "visible", "count", "text"),
    [
        (b"\x01", 1, 2, "the mask has 1 bytes; 2 tokens that may see 3 slots need 1 bytes each"),
        (b"\x01\x01\x01", 1, 2, "the mask has 3 bytes"),
        (b"\x01", MOST_BITS, 1, "at most"),
    ],
)
def test_masks_of_another_size_are_refused(
    mask: bytes, visible: int, count: int, text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        mask_runs(mask, visible, count)
