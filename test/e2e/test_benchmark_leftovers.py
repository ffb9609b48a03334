"""Processes that a benchmark started end with it, however it ends, and even if they are stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from helpers.launched import gone

from benchmark.peers.child import ROOT, Group
from benchmark.peers.watcher import Watcher

# A process that starts another one, which notes that it got SIGTERM.
_PAIR = """
import pathlib, signal, subprocess, sys, time
if len(sys.argv) == 3:
    subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]])
else:
    def end(*_):
        pathlib.Path(sys.argv[1]).touch()
        sys.exit()
    signal.signal(signal.SIGTERM, end)
    print("both", flush=True)
time.sleep(100)
"""
_GROUP = """
import sys, time
from pathlib import Path
from benchmark.peers.child import Group  # noqa: E402
pair, log, asked, paused = sys.argv[1:]
group = Group([sys.executable, "-c", pair, asked, pair], Path(log))
while "both" not in Path(log).read_text():
    time.sleep(0.01)
if paused:
    group.pause()
print("ready", flush=True)
time.sleep(100)
"""
_BENCHMARK = """
import sys
from benchmark.few_shot.claim import CLAIM
from benchmark.harness.contenders import Contender, _hosted
from benchmark.harness.main import main
from benchmark.harness.server import Server
from benchmark.harness.side import Plain

def healthy(logs):
    code = '''
import http.server
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", {port}), Healthy).serve_forever()
'''
    server = Server([sys.executable, "-c", code], logs / "healthy.log")
    server.ready(60)
    return Plain("healthy", server.url, "m", ignore_eos=True, server=server)

def slow(logs):
    Server([sys.executable, "-c", "import time; time.sleep(100)"], logs / "slow.log").ready(60)

def hosted(logs):
    return _hosted("hosted", sys.executable, "sleeper:Sleeper", {"seconds": 100}, logs, {})

last = {"slow": slow, "hosted": hosted}[sys.argv[1]]
found = [Contender("healthy", "openai-url", "", healthy), Contender("last", "openai-url", "", last)]
sys.exit(main(CLAIM, ["--peers", "--logs", sys.argv[2]], lambda model, peers: found))
"""
_SLEEPER = """
import time
class Sleeper:
    def __init__(self, seconds):
        time.sleep(seconds)
"""


@contextlib.contextmanager
def started(code: str, *arguments: str, paths: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that can import the benchmarks, in a group of its own; killed in the end."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "python"), paths])
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        start_new_session=True, env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def until(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    while (said := process.stdout.readline()) != f"{line}\n":
        assert said, f"it ended before it said {line!r}"


def family(process: subprocess.Popen[str], count: int) -> list[psutil.Process]:
    """The processes below that one, when there are so many."""
    found: list[psutil.Process] = []
    until = time.monotonic() + 60
    while len(found) < count:
        assert time.monotonic() < until, found
        time.sleep(0.02)
        found = psutil.Process(process.pid).children(recursive=True)
    return found


@pytest.mark.parametrize("paused", ["", "paused"])
def test_a_group_ends_with_a_process_that_is_killed(paused: str, tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    with started(_GROUP, _PAIR, str(tmp_path / "log"), str(asked), paused) as process:
        until(process, "ready")
        left = family(process, 3)
        if paused:
            assert [p.status() for p in left].count(psutil.STATUS_STOPPED) == 2
        process.kill()
        process.wait()
        gone(left)
    assert asked.exists(), "it was killed before it was asked to end"


@pytest.mark.usefixtures("hung_up")
@pytest.mark.parametrize(
    ("state", "number"),
    [("slow", signal.SIGINT), ("slow", signal.SIGKILL), ("hosted", signal.SIGTERM),
     ("hosted", signal.SIGHUP)],
)  # fmt: skip
def test_nothing_is_left_of_a_benchmark_that_is_stopped(
    state: str, number: signal.Signals, tmp_path: Path
) -> None:
    """One contender is paused while the other starts. All processes of the group get the signal, as
    from a terminal."""
    (tmp_path / "sleeper.py").write_text(_SLEEPER)
    with started(_BENCHMARK, state, str(tmp_path), paths=str(tmp_path)) as process:
        until(process, "last starts")
        left = family(process, 4)
        os.killpg(process.pid, number)
        assert process.wait(60) != 0
        gone(left)


def test_who_will_not_end_is_killed() -> None:
    watcher = Watcher(seconds=0)
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print(1); time.sleep(100)"
    stubborn = subprocess.Popen(
        [sys.executable, "-uc", code], stdout=subprocess.PIPE, preexec_fn=watcher.lead
    )
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    stubborn.send_signal(signal.SIGSTOP)
    watcher.act()
    assert stubborn.wait(60) == -signal.SIGKILL
    stubborn.stdout.close()


def test_a_group_that_was_closed_has_nobody_left_to_watch_it(tmp_path: Path) -> None:
    before = psutil.Process().children()
    group = Group([sys.executable, "-c", "import time; time.sleep(100)"], tmp_path / "log")
    assert len(psutil.Process().children()) == len(before) + 2
    group.close()
    group.close()
    assert psutil.Process().children() == before


def test_a_command_that_is_not_there_leaves_nothing(tmp_path: Path) -> None:
    before = psutil.Process().children()
    with pytest.raises(FileNotFoundError):
        Group([str(tmp_path / "none")], tmp_path / "log")
    gone([p for p in psutil.Process().children() if p not in before])
