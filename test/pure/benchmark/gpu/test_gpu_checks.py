"""Test files in processes of their own: one that dies spoils no other, and failures run alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmark.gpu import checks
from benchmark.gpu.records import Log, read, rows

FINE = "def test_one(): pass\ndef test_two(): pass\n"
# The second test passes alone: as after an illegal access, an earlier one spoils it.
SPOILED = (
    "import os\nseen = []\ndef test_first(): seen.append(1)\n"
    "def test_second(): assert not seen, os.environ.get('CUDA_LAUNCH_BLOCKING')\n"
)
DIES = "import os, signal\ndef test_ok(): pass\ndef test_dies(): os.kill(os.getpid(), 11)\n"
HANGS = "import time\ndef test_ok(): pass\ndef test_hangs(): time.sleep(60)\n"


class Bench:
    """The part of the benchmark's own that checks use."""

    tiny, left = True, 100.0

    def __init__(self, folder: Path) -> None:
        self.log = Log(folder, "checks")
        self.remarks: list[str] = []

    def enough(self, seconds: float, what: str) -> bool:
        return True

    def row(self, table: str, **values: Any) -> None:
        self.log.row(table, values)

    def remark(self, text: str) -> None:
        self.remarks.append(text)


def write(folder: Path, **files: str) -> list[str]:
    # A folder of its own for pytest, without plugins that take seconds to import.
    (folder / "pytest.ini").write_text("[pytest]\naddopts = -p no:schemathesis -p no:xdist\n")
    found = []
    for name, text in files.items():
        path = folder / f"test_{name}.py"
        path.write_text(text)
        found.append(str(path))
    return found


@pytest.mark.slow
def test_a_file_that_dies_spoils_no_other(tmp_path: Path) -> None:
    bench: Any = Bench(tmp_path / "out")
    files = write(tmp_path, dies=DIES, fine=FINE, spoiled=SPOILED)
    runs = checks.run_files(bench, files, [], 100.0)
    dies, fine, spoiled = runs
    assert (dies.died, dies.counts["passed"]) == ("killed by SIGSEGV", 1)
    assert dies.suspects == dies.unfinished
    assert [name.split("::")[1] for name in dies.suspects] == ["test_dies"]
    assert (fine.died, fine.counts["passed"], fine.suspects) == ("", 2, [])
    assert [name.split("::")[1] for name in spoiled.suspects] == ["test_second"]
    (row,) = [r for r in rows(read(tmp_path / "out", "checks"), "checks") if r["failed"]]
    assert (row["file"], row["passed"]) == (files[2], 1)
    assert any("assert not" in remark for remark in bench.remarks)
    # The names of tests are relative to the folder of pytest.ini.
    alone = [str(tmp_path / name) for run in runs for name in run.suspects]
    checks.run_alone(bench, alone)
    found = rows(read(tmp_path / "out", "checks"), "failures alone")
    assert [r["outcome"] for r in found] == ["killed by SIGSEGV", "passes alone"]


@pytest.mark.slow
def test_a_file_over_its_limit_keeps_what_ran(tmp_path: Path) -> None:
    bench: Any = Bench(tmp_path / "out")
    (path,) = write(tmp_path, hangs=HANGS)
    run = checks.run_file(bench, [path], path, [], 12.0)
    assert run.died == "over its limit of 12 s"
    assert run.counts["passed"] == 1
    assert [name.split("::")[1] for name in run.suspects] == ["test_hangs"]


def test_outcomes_are_read_up_to_a_broken_line(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.jsonl"
    path.write_text(
        '{"started": "a"}\n{"test": "a", "outcome": "passed", "message": ""}\n'
        '{"started": "b"}\n{"test": "b", "outc'
    )
    tests, unfinished = checks.read_outcomes(path)
    assert (list(tests), unfinished) == (["a"], ["b"])
