"""Targets of a forward: rows that are cut where several are wanted, and pairs that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.space_desk import SpaceDesk, data, filled, finish, refused
from hypothesis import given
from hypothesis import strategies as st
from sglang.srt.core.ints import ints
from sglang.srt.core.space_messages import ForwardTokens
from sglang.srt.spaces.mask_runs import mask_runs
from sglang.srt.spaces.row_targets import RowTargets


@given(st.lists(st.integers(1, 3), min_size=1, max_size=12), st.integers(0, 4), st.data())
def test_rows_request_each_target_once_and_in_order(
    counts: list[int], visible: int, draw: st.DataObject
) -> None:
    pairs = [(i, 10 * i + k) for i, count in enumerate(counts) for k in range(count)]
    targets = RowTargets.of(ints(value for pair in pairs for value in pair).tobytes(), len(counts))
    runs = targets.cut(mask_runs(b"", visible, len(counts)), visible)
    assert [run.first for run in runs] == [0, *(run.last for run in runs[:-1])]
    assert runs[-1].last == len(counts)
    found = []
    for run in runs:
        assert run.seen.tolist() == list(range(visible + run.first))
        middle = draw.draw(st.integers(run.first, run.last))  # a pass that is full may cut a row
        for first, last in ((run.first, middle), (middle, run.last)):
            if first == last:
                continue
            score, probe = targets.of_row(first, last)
            inside = [] if score is None else list(zip(range(first, last), score.targets))
            found += [*inside, *((last - 1, token) for token in probe)]
            assert score is None or score.at == 0
    assert found == pairs


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "an odd number": ({"targets": [0, 1, 1]}, "targets has 3 numbers; give pairs"),
    "a token without": ({"targets": [0, 1]}, "must name each of the 2 tokens"),
    "not ascending": ({"targets": [1, 1, 0, 1]}, "must name each of the 2 tokens"),
    "no such token": ({"targets": [0, 1, 1, 1, 2, 1]}, "must name each of the 2 tokens"),
    "no such id": ({"targets": [0, 1, 1, -4]}, "token id -4 is outside the vocabulary"),
    "a probe too": ({"targets": [0, 1, 1, 1], "probe": (3,)}, "reads nothing else"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_targets_are_refused(case: str) -> None:
    desk = SpaceDesk()
    program = filled(desk)
    program.alloc(8, 9)
    desk.run()
    fields, text = WRONG[case]
    fields = {**fields, "targets": data(fields["targets"])}
    verb = ForwardTokens(
        program.space, 40, data([1, 2]), visible=data([0, 1]), written=data([8, 9]), **fields
    )
    assert text in refused(program, lambda: program.send(verb))
    finish(desk)


def test_cut_keeps_rows_that_have_one_target_each() -> None:
    targets = RowTargets(np.arange(3, dtype=np.int32), np.arange(4))
    (run,) = targets.cut(mask_runs(b"", 2, 3), 2)
    assert (run.first, run.last) == (0, 3)
