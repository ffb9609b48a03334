"""Environments into which ``make test-clients`` installs each client, beside ``.venv``."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / ".clients"


def python_of(name: str) -> Path:
    """The interpreter of an environment; skips the test where it is not installed."""
    found = FOLDER / name / "bin" / "python"
    if not (FOLDER / name / ".installed").exists():
        pytest.skip(f"{name} is not installed; make test-clients installs it")
    return found


def packages_of(name: str) -> Path:
    """The folder of its packages; skips likewise."""
    python_of(name)
    return next((FOLDER / name).glob("lib/python3*/site-packages"))
