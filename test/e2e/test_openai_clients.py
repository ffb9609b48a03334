"""The OpenAI backend with each major release of the ``openai`` package, in environments of their
own: ``make test-clients`` makes them and runs this file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("major", [1, 2, 3])
def test_openai(major: int) -> None:
    python = ROOT / f".venv-openai-{major}" / "bin" / "python"
    if not python.exists():
        pytest.skip(f"openai {major}.x is not installed; make test-clients installs it")
    done = subprocess.run(
        [python, "-W", "error::ResourceWarning", ROOT / "test/e2e/openai_client_check.py"],
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'test'}"},
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.startswith(f"ok {major}.")
    assert "ResourceWarning" not in done.stderr
