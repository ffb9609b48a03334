"""The frontend's benchmark, tiny: it measures every row, and finds answers that differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark.frontend import requests
from benchmark.frontend.__main__ import main
from benchmark.harness.rounds import WrongAnswer, take_turns
from benchmark.harness.tables import Figure

TINY = ["--rounds", "1", "--uses", "2", "--items", "3", "--real-items", "0"]


def test_every_row_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    main([*TINY, "--output-file", str(out)])  # a limit may be missed on a busy machine
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["row"] for row in rows][-2:] == [
        "fork of 8, a gen each, join, async",
        "server that answers at once",
    ]
    assert len(rows) == 9 + 6 + 1
    assert all(len(f["values"]) == 1 for row in rows for f in row["figures"].values())
    assert "limits missed" in capsys.readouterr().out


def test_other_requests_than_by_hand_are_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(requests.SAMPLING, "top_k", 5)  # the text is the same, the request is not
    assert main(TINY) == 1
    assert "other requests than by hand" in capsys.readouterr().err


def test_turns_alternate_and_answers_are_compared() -> None:
    seen: list[str] = []
    take_turns({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 3)
    assert "".join(seen) == "a" + "ab" + "ba" + "ab"
    with pytest.raises(WrongAnswer, match="b: 2 instead of 1"):
        take_turns({"a": lambda: 1, "b": lambda: 2}, 1)


def test_a_limit_holds_for_the_median() -> None:
    assert not Figure([90, 99, 500], limit=100).missed
    assert Figure([90, 101, 102], limit=100).missed
    assert Figure([2.0, 0.9, 0.8], limit=1, above=False).missed
