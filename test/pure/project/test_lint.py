"""``make lint`` as tests: style, format, plain words and types."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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


def test_kernels_are_formatted() -> None:
    program = Path(sys.executable).with_name("clang-format")
    if not program.is_file():
        pytest.skip("clang-format is not installed")
    sources = [
        p for p in (ROOT / "sgl-kernel/csrc").iterdir() if p.suffix in (".cpp", ".h", ".inl")
    ]
    done = subprocess.run(
        [program, "--dry-run", "-Werror", *sources], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
