"""Outcomes: a pytest plugin that writes each test's outcome to a file as soon as it is known.

    GPU_OUTCOMES=FILE python -m pytest -p benchmark.gpu.outcomes ...

Lines of JSON: {"test", "outcome", "seconds", "message"}, and {"started": test} where no other
process runs tests beside this one. A process that dies within a test leaves the ones before it, and
the test's name.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "GPU_OUTCOMES"


def _write(record: dict[str, Any]) -> None:
    path = os.environ.get(VARIABLE)
    # Workers of pytest-xdist send their reports to the process that started them.
    if path and not os.environ.get("PYTEST_XDIST_WORKER"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Note the test that begins."""
    _write({"started": nodeid})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the test's outcome: its call, or a set-up that did not succeed."""
    if report.when == "call" or (report.when == "setup" and not report.passed):
        message = str(report.longrepr)[-1500:] if report.failed else ""
        _write(
            {"test": report.nodeid, "outcome": report.outcome,
             "seconds": round(report.duration, 2), "message": message}
        )  # fmt: skip


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Note a file that cannot be read."""
    if report.failed:
        _write({"test": report.nodeid, "outcome": "failed", "seconds": 0.0,
                "message": str(report.longrepr)[-1500:]})  # fmt: skip
