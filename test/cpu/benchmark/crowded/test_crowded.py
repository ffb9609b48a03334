"""``python -m benchmark.crowded``: decoding beside programs that never rest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmark.crowded.__main__ import busy_programs, main


def test_tokens_are_the_same_on_all_cores_and_on_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--size", "T", "--busy", "0", "2", "--tokens", "3", "--rounds", "1"]
    assert main([*options, "--cache", str(tmp_path)]) == 0
    rows = re.findall(r"(\d) busy programs, (all cores|one core) ", capsys.readouterr().out)
    assert rows == [("0", "all cores"), ("0", "one core"), ("2", "all cores"), ("2", "one core")]


def test_busy_programs_end_with_their_context() -> None:
    with busy_programs(2) as programs:
        assert [program.poll() for program in programs] == [None, None]
    assert all(program.returncode < 0 for program in programs)
