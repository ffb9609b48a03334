"""The templates of the code movement benchmark, reordered as far as the rules allow."""

from __future__ import annotations

import pytest
import sglang as sgl
from sglang.compile.code_movement import constants_first

from benchmark.code_movement.__main__ import main, measure, report
from benchmark.code_movement.templates import TEMPLATES


def test_most_templates_share_more(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "16 of 18 templates reordered" in capsys.readouterr().out
    rows = {row.name: row for row in measure(TEMPLATES, constants_first, len)}
    assert rows["math_expert"].order == [2, 1]
    assert rows["math_expert"].added == len(
        "Please act as a math expert and solve the given question. "
    )
    assert rows["constants_already_first"].verdict == "as it was"


def test_a_bad_proposal_is_reported_and_changes_nothing() -> None:
    @sgl.function
    def one(s, q):
        s += q + "\nSolve it.\n" + sgl.gen("x")

    rows = measure([one], lambda pieces: [7])
    assert (rows[0].added, rows[0].verdict) == (0, "refused: [7] is no permutation of 1 to 2")
    assert "0 of 1 templates reordered" in report(rows, measure([one], constants_first))
