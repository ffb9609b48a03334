"""The report of a run: what was measured, what was not, and why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmark.gpu.plots import percent, plots
from benchmark.gpu.records import Log, Value
from benchmark.gpu.report import table, write
from benchmark.gpu.stages import STAGES, chosen

CASE: dict[str, Value] = {
    "model": "1 B", "pass": "decode 1", "bound ms": 0.7, "goal": "75%", "reached": "71%",
    "eager of bound": "31%", "graph of bound": "71%",
}  # fmt: skip


def fill(folder: Path) -> None:
    """Records of a run in which the engine broke once and the load never began."""
    Log(folder, "environment").row("environment", {"what": "GPU", "found": "H100"})
    passes = Log(folder, "passes")
    passes.add("started", mode="graph")
    passes.remark("broken: RuntimeError: capture")
    passes.add("ended", mode="graph", status="broken", seconds=3.0, detail="exit status 3")
    passes.add("started", mode="eager")
    passes.row("passes", CASE)
    passes.row("waits", {"model": "1 B", "way": "graph", "launch": "decode",
                         "outcome": "waits: called a synchronizing operation"})  # fmt: skip
    passes.row("waits", {"model": "1 B", "way": "eager", "launch": "mixed",
                         "outcome": "nothing waits"})  # fmt: skip
    passes.row("compiled after start", {"model": "1 B", "compiled": 2, "read": 1, "seconds": 3.0})
    passes.add("ended", mode="eager", status="good", seconds=9.0, detail="")
    checks = Log(folder, "checks")
    checks.add("started", mode="")
    checks.row("checks", {"file": "a.py", "passed": 3, "failed": 1, "died": None})
    checks.row("checks", {"file": "b.py", "passed": 1, "failed": 0, "died": "killed by SIGSEGV"})
    profile = Log(folder, "profile")
    profile.add("ended", mode="graph", status="good", seconds=1.0, detail="")
    profile.row("kernels of 1 B replay", {"us a pass": 5.0, "share": "9%", "kernel": "norm | x"})


@pytest.mark.slow
def test_the_page_says_what_is_right_fast_and_missing(tmp_path: Path) -> None:
    fill(tmp_path)
    page = write(tmp_path, list(STAGES.values()))
    assert page == (tmp_path / "report.md").read_text()
    short, _, rest = page.partition("## Stages")
    assert "# H100" in short
    assert "- Tests: 4 passed, 1 failed; ended early: b.py" in short
    assert "- Launches that wait for the device: 1 B graph decode\n" in short
    assert "- 1 B: 2 kernels compiled and 1 read after start" in short
    assert "- 1 B, decode 1: 71% of the bound, goal 75%" in short
    assert "| passes | graph | broken | 3 | exit status 3 |" in rest
    assert "| passes | eager | good | 9 | - |" in rest
    assert "| checks | - | interrupted | - | - |" in rest
    assert "| load | - | not run | - | - |" in rest
    assert "- broken: RuntimeError: capture" in rest
    assert "norm \\| x" in rest


def test_the_data_has_every_attempt_row_and_remark(tmp_path: Path) -> None:
    fill(tmp_path)
    write(tmp_path, chosen("passes"))
    data = json.loads((tmp_path / "report.json").read_text())
    assert list(data) == ["ceilings", "passes"]
    assert [a["status"] for a in data["passes"]["attempts"]] == ["broken", "good"]
    assert data["passes"]["tables"]["passes"] == [CASE]
    assert data["passes"]["remarks"] == ["broken: RuntimeError: capture"]


def test_plots_are_made_of_what_there_is(tmp_path: Path) -> None:
    fill(tmp_path)
    page = write(tmp_path, list(STAGES.values()))
    assert (tmp_path / "passes.svg").read_text().count("<svg") == 1
    assert "![Time by kernel](profile.svg)" in page
    assert not (tmp_path / "attention.svg").exists()
    first = (tmp_path / "passes.svg").read_bytes()
    write(tmp_path, list(STAGES.values()))
    assert (tmp_path / "passes.svg").read_bytes() == first


def test_nothing_measured_is_a_page_too(tmp_path: Path) -> None:
    page = write(tmp_path, list(STAGES.values()))
    assert "Nothing was measured." in page
    assert page.count("Not run.") == len(STAGES)
    assert plots({}, tmp_path) == {}


def test_tables_leave_out_empty_columns() -> None:
    assert table([{"a": 1, "b": None}, {"a": 2.5, "c": "x\ny"}]).splitlines() == [
        "| a | c |", "|---|---|", "| 1 | - |", "| 2.5 | x y |"
    ]  # fmt: skip
    assert table([]) == "No rows."
    assert [percent(x) for x in ("71%", None, 3)] == [71.0, 0.0, 0.0]
