"""The clock is an argument: only its own file reads the machine's time."""

from __future__ import annotations

import ast

import pytest
from helpers.paths import ROOT
from sglang.srt.core.clock import SYSTEM_CLOCK, ManualClock

SRT = ROOT / "python" / "srt"
READERS = {"monotonic", "monotonic_ns", "time", "time_ns"}  # processor time is not among them


def time_reads(source: str) -> list[str]:
    """Return the names of ``time`` functions in ``source`` that read the machine's time."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "time" and node.attr in READERS:
                found.append(node.attr)
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            found += [alias.name for alias in node.names if alias.name in READERS]
    return found


def test_only_the_clock_reads_the_machines_time() -> None:
    found = {
        str(path.relative_to(SRT))
        for package in ("core", "memory", "schedule", "engine")
        for path in (SRT / package).rglob("*.py")
        if time_reads(path.read_text(encoding="utf-8"))
    }
    assert found == {"core/clock.py"}


@pytest.mark.parametrize(
    "source",
    ["import time\ntime.monotonic()", "from time import time", "import time\nnow = time.time_ns"],
)
def test_a_read_of_time_is_found(source: str) -> None:
    assert time_reads(source)


def test_processor_time_is_no_read() -> None:
    assert time_reads("import time\ntime.thread_time()") == []


def test_manual_clock_moves_when_told() -> None:
    clock = ManualClock(5.0)
    clock.advance(2.5)
    assert (clock.now(), clock.now()) == (7.5, 7.5)
    with pytest.raises(ValueError, match="seconds is -1; a clock moves on by at least 0"):
        clock.advance(-1)


def test_system_clock_never_goes_back() -> None:
    first = SYSTEM_CLOCK.now()
    assert SYSTEM_CLOCK.now() >= first
