"""The kernels' threads, and sums over processes, in C++ tests under ThreadSanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.paths import ROOT

KERNELS = ROOT / "sgl-kernel"
SOURCES = ("test/test_threads.cpp", "csrc/team.cpp", "csrc/meeting.cpp")
COMPILER = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++") or ""


@pytest.mark.slow
def test_threads_have_no_race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "threads"
    monkeypatch.delenv("LD_PRELOAD", raising=False)  # make kernels-asan sets it
    if not COMPILER:
        pytest.skip("no C++ compiler on this machine")
    probe = [COMPILER, "-fsanitize=thread", "-x", "c++", "-", "-o", str(program)]
    if subprocess.run(probe, input=b"int main() {}", capture_output=True).returncode:
        pytest.skip(f"{COMPILER} has no ThreadSanitizer")
    flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-fsanitize=thread"]
    sources = [KERNELS / source for source in SOURCES]
    built = subprocess.run(
        [COMPILER, *flags, "-pthread", *sources, "-o", program], capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([program], capture_output=True, text=True, timeout=200)
    assert (ran.returncode, ran.stdout) == (0, "11 tests passed\n"), ran.stderr
