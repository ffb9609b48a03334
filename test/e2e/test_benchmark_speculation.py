"""The benchmark of speculation, tiny: it measures every row, and finds texts that differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark.speculation import __main__ as benchmark

TINY = ["--layers", "6", "--num-requests", "2", "--output-len", "24", "--rounds", "1",
        "--threads", "1"]  # fmt: skip


def test_every_row_is_measured(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    benchmark.main([*TINY, "--output-file", str(out)])  # so short a text may miss its limit
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["table"].split(",")[0], row["row"]) for row in rows] == [
        (work, side)
        for work in ("repetitive", "free")
        for side in ("off", "ngram", "draft", "draft, wrong")
    ]
    accepted = {row["row"]: row["figures"]["accepted"]["median"] for row in rows}
    assert accepted["draft"] > 0.9
    assert accepted["draft, wrong"] < 0.2
    assert accepted["off"] == 0


def test_a_changed_text_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = benchmark.run

    def wrong(engine, work, count, length, source):
        found = real(engine, work, count, length, source)
        if source == "ngram":
            found.tokens[0][-1] += 1
        return found

    monkeypatch.setattr(benchmark, "run", wrong)
    assert benchmark.main(TINY) == 1
    assert "another text than without" in capsys.readouterr().err
