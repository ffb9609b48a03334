"""RowPlan: the mask of a forward as the bits of a verb."""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest
from sglang.srt.core.ints import ints
from sglang.srt.inferlet.row_plan import RowPlan


def planned(mask: list[list[bool]], visible: int = 0) -> RowPlan:
    count = len(mask)
    return RowPlan(
        ints([5] * count), ints(range(count)), ints(range(visible)), ints(range(count)), mask=mask
    )


def row_bytes(row: list[bool]) -> bytes:
    """The bits of a row, one by one."""
    found = bytearray((len(row) + 7) // 8)
    for index, seen in enumerate(row):
        found[index // 8] |= seen << index % 8
    return bytes(found)


@pytest.mark.parametrize("visible", [*range(10), 63, 200])
def test_a_masks_bits_are_those_of_its_entries(visible: int) -> None:
    r = random.Random(visible)
    mask = [[r.random() < 0.5 for _ in range(visible + 3)] for _ in range(3)]
    [verb] = planned(mask, visible).verbs(1, [3], [7])
    assert verb.mask == b"".join(map(row_bytes, mask))
    first, second = planned(mask, visible).verbs(1, [1, 3], [7, 8])
    assert first.mask == row_bytes(mask[0][: visible + 1])
    assert second.mask == b"".join(map(row_bytes, mask[1:]))


def test_a_masks_entries_are_not_visited_in_python() -> None:
    """A mask may have four million of them, and the loop's other programs wait."""
    steps = 0

    def count(*_: Any) -> None:
        nonlocal steps
        steps += 1

    plan = planned([[True] * 1000 for _ in range(5)], 995)
    sys.setprofile(count)
    try:
        plan.verbs(1, [5], [7])
    finally:
        sys.setprofile(None)
    assert steps < 1000
