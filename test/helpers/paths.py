"""Folders of the checkout, so that a test file can move without counting its parents."""

from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
PYTHON = ROOT / "python"
