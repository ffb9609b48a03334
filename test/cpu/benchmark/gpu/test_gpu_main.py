"""The command benchmark.gpu: folders it cannot use, signals, a terminal that is gone."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from benchmark.gpu import __main__ as command
from benchmark.gpu.records import Log
from benchmark.gpu.supervise import Supervisor

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    """Handlers are as before the test."""
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def run(folder: Path) -> int:
    return command.main(["--tiny", "--stages", "environment", "--out", str(folder)])


def refusal(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        command.main(["--tiny", *arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/within"):
        said = refusal(["--out", str(tmp_path / name)], capsys)
        assert "where nothing can be written: " in said


def test_results_of_another_run_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Log(tmp_path, "environment").row("environment", {"what": "GPU", "found": "an old one"})
    before = (tmp_path / "stages" / "environment.jsonl").read_text()
    assert "has results already" in refusal(["--out", str(tmp_path)], capsys)
    assert (tmp_path / "stages" / "environment.jsonl").read_text() == before


def test_the_report_of_a_killed_run_is_written_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Log(tmp_path, "environment").row("environment", {"what": "GPU", "found": "an old one"})
    assert command.main(["--report", str(tmp_path)]) == 0
    assert "# an old one: torch" in (tmp_path / "report.md").read_text()
    assert "# an old one: torch" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command.main(["--report", str(tmp_path / "none")])
    assert "which has no results of a run" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, *SIGNALS])
def test_a_signal_ends_the_stage_and_leaves_a_report(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    children: list[int] = []
    began = time.monotonic()

    def waits(self: Supervisor, child: Any, path: Path, name: str) -> None:
        children.append(child.pid)
        os.kill(os.getpid(), number)

    monkeypatch.setattr(Supervisor, "_follow", waits)
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(
        command, "Supervisor", lambda folder, _, total, say: Supervisor(
            folder, lambda *_: sleeping, total, say
        )
    )  # fmt: skip
    assert run(tmp_path) == 130
    assert "interrupted" in (tmp_path / "report.md").read_text()
    with suppress(ChildProcessError):  # the killed child may have been waited for
        os.waitpid(children[0], 0)
    assert time.monotonic() - began < 50


def test_a_terminal_that_is_gone_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*arguments: Any, **options: Any) -> None:
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", gone)
    good = [sys.executable, "-c", "print('a line')"]
    monkeypatch.setattr(
        command, "Supervisor", lambda folder, _, total, say: Supervisor(
            folder, lambda *_: good, total, say
        )
    )  # fmt: skip
    assert run(tmp_path) == 0
    assert "| environment | good |" in (tmp_path / "report.md").read_text()
    assert (tmp_path / "logs" / "environment.log").read_text() == "a line\n"
