"""The benchmark's RAG program sends what DSPy itself sends, to the letter, and gets the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from environments import packages_of

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from benchmark.dspy_rag.claim import CLAIM
from benchmark.dspy_rag.pipeline import packages, replies
from benchmark.harness.ablations import FULL, opened
from benchmark.harness.claim import Scale


def test_dspy_sends_what_the_program_sends() -> None:
    assert packages_of("dspy")
    assert (packages() / "dspy").is_dir()
    scale = Scale(3)
    theirs = replies(scale, 5, "")  # raises where a message differs
    side = opened(FULL)
    try:
        ours = side.run(CLAIM, CLAIM.items(scale, 5), "throughput")
    finally:
        side.close()
    assert theirs["prompt_tokens"] == ours.prompt_tokens
    assert theirs["replies"] == ours.answers
