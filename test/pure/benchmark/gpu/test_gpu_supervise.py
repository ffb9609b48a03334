"""Stages in processes: limits, deaths, other modes, and what a dying process leaves."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmark.gpu.records import Log, read, rows
from benchmark.gpu.stages import (
    BOUNDED,
    CEILINGS,
    MODES,
    ONCE,
    REPORT,
    RESUMED,
    STAGES,
    Stage,
    chosen,
)
from benchmark.gpu.supervise import Supervisor

pytestmark = pytest.mark.slow  # starts processes

# Code of a stage's process, by the stage's name or "name mode".
WORDS = {
    "good": "print('a line')",
    "wrong": "raise SystemExit(4)",
    "breaks": "raise ValueError",
    "dies": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "hangs": "import time; print('waiting', flush=True); time.sleep(60)",
    "stubborn": "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);time.sleep(60)",
}


def stage(name: str, seconds: float = 1.0, modes: tuple[str, ...] = ("",)) -> Stage:
    return Stage(name, seconds, "none:none", name, modes)


def supervisor(
    folder: Path, scripts: dict[str, str], total: float = 30.0, said: list[str] | None = None
) -> Supervisor:
    def command(stage: Stage, mode: str, seconds: float) -> Sequence[str]:
        script = scripts.get(f"{stage.name} {mode}", scripts.get(stage.name, "1/0"))
        return [sys.executable, "-c", script]

    lines: list[str] = [] if said is None else said
    return Supervisor(folder, command, total, lines.append, retry=0.1)


def statuses(made: Supervisor) -> list[tuple[str, str, str]]:
    return [(o.stage, o.mode, o.status) for o in made.outcomes]


def test_every_end_is_recorded_and_the_next_stage_runs(tmp_path: Path) -> None:
    names = ["good", "wrong", "breaks", "dies", "good"]
    said: list[str] = []
    made = supervisor(tmp_path, WORDS, said=said)
    made.run([stage(name) for name in names])
    ends = ["good", "wrong", "broken", "killed", "good"]
    assert statuses(made) == [(name, "", end) for name, end in zip(names, ends)]
    assert made.outcomes[3].detail == "SIGSEGV"
    (record,) = [r for r in read(tmp_path, "dies") if r["kind"] == "ended"]
    assert (record["status"], record["detail"]) == ("killed", "SIGSEGV")
    assert any(line.endswith("good | a line") for line in said)
    assert (tmp_path / "logs" / "good.log").read_text() == "a line\n" * 2


def test_a_stage_that_hangs_is_ended_and_others_have_their_time(tmp_path: Path) -> None:
    made = supervisor(tmp_path, WORDS, total=9.0)
    began = time.monotonic()
    made.run([stage("hangs"), stage("good", 2.0)])
    assert [o.status for o in made.outcomes] == ["over its limit", "good"]
    assert time.monotonic() - began < 30
    assert "waiting" in (tmp_path / "logs" / "hangs.log").read_text()


def test_a_stage_that_ignores_the_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmark.gpu.supervise.GRACE", 0.2)
    made = supervisor(tmp_path, WORDS, total=1.0)
    made.run([stage("stubborn")])
    assert made.outcomes[0].status == "over its limit"


@pytest.mark.parametrize("group", ["None", "os.setpgrp"])
def test_what_a_stage_started_ends_with_it(tmp_path: Path, group: str) -> None:
    mark = tmp_path / "pid"
    script = (
        "import os, subprocess, sys; "
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], "
        f"preexec_fn={group}); "
        f"open({str(mark)!r}, 'w').write(str(child.pid))"
    )
    made = supervisor(tmp_path, {"parent": script})
    made.run([stage("parent")])
    assert statuses(made) == [("parent", "", "good")]
    deadline = time.monotonic() + 20
    while _alive(int(mark.read_text())):
        assert time.monotonic() < deadline, "the child is left behind"
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_modes_are_tried_until_one_ends(tmp_path: Path) -> None:
    scripts = {"run graph": WORDS["dies"], "run eager": WORDS["breaks"], "run": WORDS["good"]}
    made = supervisor(tmp_path, scripts)
    made.run([stage("run", modes=tuple(MODES))])
    assert statuses(made) == [
        ("run", "graph", "killed"), ("run", "eager", "broken"), ("run", "triton", "good")
    ]  # fmt: skip


def test_a_wrong_result_is_not_tried_again(tmp_path: Path) -> None:
    made = supervisor(tmp_path, WORDS)
    made.run([stage("wrong", modes=("graph", "eager"))])
    assert statuses(made) == [("wrong", "graph", "wrong")]


def test_without_time_no_other_mode_is_tried(tmp_path: Path) -> None:
    made = supervisor(tmp_path, WORDS, total=1.0)
    made.run([stage("hangs", modes=("graph", "eager"))])
    assert [o.status for o in made.outcomes] == ["over its limit", "left out"]


def test_a_stage_learns_of_an_earlier_deadline_than_its_limit(tmp_path: Path) -> None:
    limits: list[float] = []

    def command(stage: Stage, mode: str, seconds: float) -> Sequence[str]:
        limits.append(seconds)
        return [sys.executable, "-c", ""]

    made = Supervisor(tmp_path, command, 100.0, list[str]().append)
    made.run([stage("a", 1.0), stage("b", 3.0)], reserve=20.0)
    assert 15 < limits[0] <= 0.85 * 20
    # The second has nearly all 80 seconds, less the margin of 10.
    assert 60 < limits[1] <= 70


def test_lines_survive_a_process_that_died_within_one(tmp_path: Path) -> None:
    log = Log(tmp_path, "s")
    log.row("t", {"a": 1})
    with log.path.open("a") as file:
        file.write('{"kind": "row", "tab')
    log.row("t", {"a": 2})
    assert rows(read(tmp_path, "s"), "t") == [{"a": 1}, {"a": 2}]
    assert read(tmp_path, "never run") == []


def test_stages_are_chosen_in_their_order_with_what_they_need() -> None:
    assert [s.name for s in chosen("passes, environment")] == ["environment", CEILINGS, "passes"]
    assert [s.name for s in chosen("load")] == ["load"]
    with pytest.raises(ValueError, match="--stages has warp; there are environment, ceilings"):
        chosen("load,warp")
    with pytest.raises(ValueError, match="--stages names none; there are environment, ceilings"):
        chosen(" ,")


def test_the_stages_take_thirty_minutes_and_exist() -> None:
    assert sum(s.seconds for s in STAGES.values()) + REPORT <= 1800
    assert set(STAGES) >= BOUNDED
    folder = Path(__file__).resolve().parents[4] / "benchmark" / "gpu"
    for one in STAGES.values():
        module, _, function = one.code.partition(":")
        assert f"\ndef {function}(" in (folder / f"{module}.py").read_text(), one.code
        assert one.modes in (ONCE, RESUMED, tuple(MODES))


def test_the_clock_is_part_of_every_line(tmp_path: Path) -> None:
    said: list[str] = []
    supervisor(tmp_path, WORDS, total=60.0, said=said).run([stage("good")])
    assert all(line.startswith("[ 0:") and " of  1:00 " in line for line in said)
    assert os.listdir(tmp_path / "stages") == ["good.jsonl"]
