"""``make lint`` as tests: style, format, plain words and types."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers.paths import ROOT


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    ["ruff check .", "ruff format --check .", "tools.words", "mypy"],
    ids=lambda c: c.replace(" ", "-"),
)
def test_lint(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command.split()], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
