"""DSPy on the embedded model. It wants other releases of packages that ours has too, so it lives in
an environment of its own, whose packages ``dspy_cases.py`` sees before ours."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from environments import ROOT, packages_of

CASES = Path(__file__).resolve().parent / "dspy_cases.py"


def test_dspy_cases(tmp_path: Path) -> None:
    paths = [str(ROOT / "python"), str(packages_of("dspy"))]
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(CASES)]
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
