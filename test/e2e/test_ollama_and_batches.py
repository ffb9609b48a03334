"""Ollama's API through its client, on the embedded model."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.launched import launched

pytest.importorskip("torch")

from sglang.srt.tokenizer.tokenizer import EMBEDDED

KEY = "sk-of-the-tests"
CASES = Path(__file__).parent / "clients" / "cases" / "ollama_cases.py"
pytestmark = pytest.mark.skipif(
    not (EMBEDDED / "model.safetensors").is_file(), reason="the answers are the embedded model's"
)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with launched(["--device", "cpu", "--max-total-tokens", "32768", "--api-key", KEY]) as server:
        yield server.url


@pytest.fixture(scope="module")
def key() -> str:
    return KEY


# The cases of the client's own environment, with the version that the tests have.
globals().update(
    {
        name: case
        for name, case in runpy.run_path(str(CASES)).items()
        if name.startswith("test_") or name == "client"
    }
)
