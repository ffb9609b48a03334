"""Costs of importing the language, beyond the layer test: each name alone stays light too."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers.paths import PYTHON

HEAVY = [
    "torch",
    "numpy",
    "transformers",
    "httpx",
    "tqdm",
    "sglang.srt",
    "msgspec",
    "openai",
    "pydantic",
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "statement",
    ["import sglang", "from sglang import function, gen, Mock"],
)
def test_nothing_heavy(statement: str) -> None:
    code = f"{statement}\nimport sys, json\n"
    code += f"print(json.dumps([m for m in {HEAVY} if m in sys.modules]))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={"PYTHONPATH": PYTHON}, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout) == []
