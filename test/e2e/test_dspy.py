"""DSPy on the embedded model. It wants other releases of packages that ours has too, so it lives in
an environment of its own, made by ``make test-clients``, whose packages ``dspy_cases.py`` sees
before ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGES = next((ROOT / ".venv-clients").glob("lib/python3*/site-packages"), None)
pytestmark = pytest.mark.skipif(
    PACKAGES is None or not (PACKAGES / "dspy").exists(),
    reason="DSPy is not installed; make test-clients installs it",
)


def test_dspy_cases(tmp_path: Path) -> None:
    paths = [str(ROOT / "python"), str(PACKAGES)]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        str(HERE / "dspy_cases.py"),
    ]
    done = subprocess.run(
        command,
        capture_output=True, text=True, timeout=280,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "DSPY_CACHEDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]


def test_without_dspy_the_import_says_what_to_install() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import sglang.integrations.dspy"],
        capture_output=True, text=True, timeout=60,
        env={"PYTHONPATH": str(ROOT / "python"), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert "pip install 'dspy>=3.4'" in done.stderr
