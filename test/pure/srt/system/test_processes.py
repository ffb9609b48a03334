"""Processes that belong together: real ones, killed and stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers.paths import PYTHON
from sglang.srt.system.processes import stopped_twice, when_orphaned

pytestmark = pytest.mark.slow

CHILD = """
import os, sys, time
from pathlib import Path
from sglang.srt.system.processes import when_orphaned

def leave():
    Path(sys.argv[2]).touch()
    os._exit(0)

when_orphaned(int(sys.argv[1]), leave)
print(os.getpid(), flush=True)
time.sleep(600)
"""
PARENT = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid()), sys.argv[2]])
time.sleep(600)
"""
PATH = {**os.environ, "PYTHONPATH": str(PYTHON)}


def until_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_child_acts_when_its_parent_is_killed(tmp_path: Path) -> None:
    left = tmp_path / "left"
    command = [sys.executable, "-c", PARENT, CHILD, str(left)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=PATH, text=True) as parent:
        assert parent.stdout
        child = int(parent.stdout.readline())
        assert not left.exists()
        parent.kill()
    until_gone(child)
    assert left.exists()


def test_a_child_whose_parent_has_ended_already_acts_at_once(tmp_path: Path) -> None:
    left = tmp_path / "left"
    command = [sys.executable, "-c", CHILD, "1", str(left)]  # the parent is this process
    subprocess.run(command, stdout=subprocess.PIPE, env=PATH, timeout=120, check=True)
    assert left.exists()


def test_the_action_waits_for_the_parents_end(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([7, 7, 7, 1])
    looked = threading.Event()
    seconds: list[float] = []
    monkeypatch.setattr("os.getppid", lambda: next(parents))
    monkeypatch.setattr("time.sleep", seconds.append)
    when_orphaned(7, looked.set)
    assert looked.wait(60)
    assert len(seconds) == 3
    assert next(parents, None) is None


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as process:
        yield process
        process.kill()


def stop(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    deadline = time.monotonic() + 60
    while psutil.Process(process.pid).status() != psutil.STATUS_STOPPED:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_stop_counts_at_the_second_look(sleeper: subprocess.Popen[bytes]) -> None:
    look = stopped_twice(sleeper.pid)
    assert not look()
    stop(sleeper)
    assert [look(), look(), look()] == [False, True, True]


def test_a_moments_stop_does_not_count(sleeper: subprocess.Popen[bytes]) -> None:
    look = stopped_twice(sleeper.pid)
    for _ in range(3):
        stop(sleeper)
        assert not look()
        sleeper.send_signal(signal.SIGCONT)
        while psutil.Process(sleeper.pid).status() == psutil.STATUS_STOPPED:
            time.sleep(0.001)
        assert not look()


def test_a_process_that_is_gone_is_not_stopped(sleeper: subprocess.Popen[bytes]) -> None:
    look = stopped_twice(sleeper.pid)
    stop(sleeper)
    look()
    sleeper.kill()
    sleeper.wait()
    assert not look()
