"""``benchmark.select`` end to end on few options, and what its checks find."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from sglang.ir.choices import Decision

pytest.importorskip("torch")

from benchmark.select.__main__ import main
from benchmark.select.options import KINDS, options
from benchmark.select.ways import Differs, Selected, verify


def selected(text: str, *values: float) -> Selected:
    return Selected(0.1, Decision(text, {"input_token_logprobs": [[[v, 1, "a"]] for v in values]}))


def test_all_ways_run_and_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "rows.jsonl"
    arguments = ["--counts", "12", "--rounds", "1", "--sentences", "1", "--peers", str(tmp_path)]
    assert main([*arguments, "--output-file", str(file)]) == 0
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [(row["kind"], row["way"]) for row in rows] == [
        (kind, way) for kind in KINDS for way in ("tree", "rows", "constrained")
    ]
    for tree, by_rows in (rows[0:2], rows[3:5]):
        assert tree["computed"] < by_rows["computed"]
        assert tree["difference"] == 0
    assert "guidance: no " in capsys.readouterr().out


def test_what_differs_is_found() -> None:
    assert verify(selected("a", -1.0), selected("a", -1.0), 0.0) == 0
    assert verify(selected("a", -1.0), selected("a", -1.5), 0.5) == 0.5
    for tree, rows in (
        (selected("a", -1.0), selected("a", -1.5)),
        (selected("a", -1.0), selected("b", -1.0)),
        (selected("a", -1.0), selected("a", -1.0, -2.0)),
    ):
        with pytest.raises(Differs):
            verify(tree, rows, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_options_differ(kind: str) -> None:
    assert len(set(options(kind, 300, 1))) == 300
    assert options(kind, 30, 1) == options(kind, 30, 1) != options(kind, 30, 2)
