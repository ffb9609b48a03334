"""Checks: the tests of test/gpu, a process a file and several files at a time.

An illegal access spoils its process for every test that follows, and no other file. FlashInfer's
kernels are compiled meanwhile; its tests run last and by themselves. Tests that failed, or in which
a process died, are run once more, each alone and with CUDA_LAUNCH_BLOCKING=1.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark.gpu.outcomes import VARIABLE

if TYPE_CHECKING:
    from benchmark.gpu.bench import Bench

ROOT = Path(__file__).resolve().parents[2]
JOBS = 6  # files at a time
WORKERS = 4  # most processes of pytest-xdist for one file
SLOWEST = "flashinfer"
RERUNS = 12
RERUN_SECONDS = 60.0
# Shares of the time that is left: for all but FlashInfer, for its compiler, and for FlashInfer. The
# rest is for failures alone.
SHARES = (0.55, 0.8)
PREBUILD = 0.4


@dataclass
class FileRun:
    """Outcomes of the tests of one file, by test. ``died``: why its process ended early."""

    name: str
    seconds: float = 0.0
    died: str = ""
    tests: dict[str, dict[str, Any]] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)

    @property
    def counts(self) -> Counter[str]:
        return Counter(str(test["outcome"]) for test in self.tests.values())

    @property
    def suspects(self) -> list[str]:
        """Tests that failed, or in which the process died."""
        failed = [name for name, test in self.tests.items() if test["outcome"] == "failed"]
        return failed + (self.unfinished if self.died else [])


def checks(bench: Bench) -> bool:
    """Whether every test passed, or was skipped for a reason, in the time there was."""
    files = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "test/gpu").rglob("test_*.py"))
    only = ["-k", "native and test_long_rows"] if bench.tiny else ["-k", f"not {SLOWEST}"]
    backed = [name for name in files if "attention" in name or "worker" in name]
    with prebuilding(bench) as built:
        runs = run_files(bench, backed[:1] if bench.tiny else files, only, bench.left * SHARES[0])
        if not bench.tiny:
            built(bench.left * PREBUILD)
            runs += run_files(bench, backed, ["-k", SLOWEST], bench.left * SHARES[1])
    good = all(not run.suspects and not run.died for run in runs)
    run_alone(bench, [test for run in runs for test in run.suspects])
    return good


def run_files(
    bench: Bench, files: Sequence[str], options: list[str], seconds: float
) -> list[FileRun]:
    """All files, ``JOBS`` at a time, within ``seconds`` together."""
    deadline = time.monotonic() + seconds
    lock = threading.Lock()

    def one(name: str) -> FileRun:
        run = run_file(bench, [name], name, options, deadline - time.monotonic(), parallel=True)
        with lock:
            _report(bench, run, " ".join(options))
        return run

    with ThreadPoolExecutor(1 if bench.tiny else JOBS) as pool:
        return list(pool.map(one, files))


@contextmanager
def prebuilding(bench: Bench) -> Iterator[Callable[[float], None]]:
    """FlashInfer's kernels compiled meanwhile, in a process with little priority. The function that
    is given waits for it, so many seconds at most."""
    log = bench.log.path.parent.parent / "checks" / "prebuild.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = ["nice", "-n", "5", sys.executable, "-m", "benchmark.gpu.prebuild"]
    began = time.monotonic()
    child = None if bench.tiny else _start(command, log, dict(os.environ))

    def wait(seconds: float) -> None:
        assert child is not None
        try:
            outcome = f"exit status {child.wait(max(seconds, 1.0))}"
        except subprocess.TimeoutExpired:
            outcome = "not ended"
        last = (log.read_text(encoding="utf-8", errors="replace").splitlines() or [""])[-1]
        seconds = time.monotonic() - began
        bench.row("prebuild", outcome=outcome, seconds=seconds, last=last[-300:])

    try:
        yield wait
    finally:
        if child is not None:
            _end(child)


def _report(bench: Bench, run: FileRun, options: str) -> None:
    counts = run.counts
    bench.row(
        "checks", file=run.name, options=options, passed=counts["passed"], failed=counts["failed"],
        skipped=counts["skipped"], seconds=run.seconds, died=run.died or None,
    )  # fmt: skip
    reasons = {test["message"] for test in run.tests.values() if test["outcome"] == "failed"}
    for reason in sorted(reasons)[:3]:
        bench.remark(f"{run.name}: ... {' '.join(reason.split())[-400:]}")


def run_alone(bench: Bench, tests: Sequence[str]) -> None:
    """Each test in a process of its own, every launch awaited: what fails is the culprit."""
    for test in tests[:RERUNS]:
        if not bench.enough(10, f"{test} alone, and what follows"):
            return
        limit = min(RERUN_SECONDS, bench.left)
        run = run_file(bench, [test], test, [], limit, {"CUDA_LAUNCH_BLOCKING": "1"})
        failed = [found["message"] for found in run.tests.values() if found["outcome"] == "failed"]
        outcome = run.died or ("fails alone too" if failed else "passes alone")
        bench.row("failures alone", test=test, outcome=outcome, seconds=run.seconds)
        for message in failed[:1]:
            bench.remark(f"{test}, alone: {message[-1200:]}")
    if len(tests) > RERUNS:
        bench.remark(f"{len(tests) - RERUNS} more failures were not run alone")


def run_file(
    bench: Bench, targets: Sequence[str], name: str, options: Sequence[str], limit: float,
    settings: dict[str, str] | None = None, parallel: bool = False,
) -> FileRun:  # fmt: skip
    """Run tests in one process under ``limit`` seconds."""
    folder = bench.log.path.parent.parent / "checks"
    folder.mkdir(parents=True, exist_ok=True)
    stem = f"{len(list(folder.iterdir())):03}-{Path(name.partition('::')[0]).stem}"
    path, log = folder / f"{stem}.jsonl", folder / f"{stem}.log"
    path.touch()
    command = [sys.executable, "-m", "pytest", "-p", "benchmark.gpu.outcomes", "-p",
               "no:cacheprovider", "-rf", *targets, *options]  # fmt: skip
    if parallel and not bench.tiny and find_spec("xdist"):
        command += ["-n", str(min(WORKERS, max(1, (os.cpu_count() or 1) // 3)))]
    run = FileRun(name)
    began = time.monotonic()
    child = _start(command, log, _environment(bench, path, settings or {}))
    try:
        code = child.wait(max(limit, 1.0))
        if code < 0:
            run.died = f"killed by {signal.Signals(-code).name}"
        elif code not in (0, 1, 5):  # 5: no test was chosen
            run.died = f"pytest ended with status {code}"
    except subprocess.TimeoutExpired:
        run.died = f"over its limit of {limit:.0f} s"
    finally:
        _end(child)
    run.seconds = time.monotonic() - began
    run.tests, run.unfinished = read_outcomes(path)
    return run


def _start(command: list[str], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A process in a group of its own, so that it can be ended with all it starts, and in the
    session of the stage, which ends it where the stage dies."""
    with log.open("w", encoding="utf-8") as output:
        return subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT,
            preexec_fn=os.setpgrp,
        )  # fmt: skip


def _environment(bench: Bench, path: Path, settings: dict[str, str]) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    if bench.tiny:
        settings = {"SGLANG_TEST_DEVICE": "cpu", **settings}
    return kept | {VARIABLE: str(path)} | settings


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the whole group, workers included."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def read_outcomes(path: Path) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Outcomes by test, the last of each, and tests that began and have none."""
    tests: dict[str, dict[str, Any]] = {}
    started: dict[str, None] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            record = json.loads(line)
        except ValueError:  # a process died within the line
            continue
        if "started" in record:
            started[record["started"]] = None
        else:
            tests[record["test"]] = record
    return tests, [test for test in started if test not in tests]
