"""Two tensor-parallel ranks, threads here, compute the logits of transformers, by torch and
natively."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from helpers import hf_models
from helpers.parity import Case, all_cases, compare
from helpers.ranks import native_split_logits, split_logits
from sgl_kernel.native import AVAILABLE

# Architectures that two ranks cannot share, each with the reason.
WHOLE: dict[str, str] = {}
TEXT = [case for case in all_cases() if isinstance(case, Case)]
FIRST = {case.architecture: case for case in reversed(TEXT)}


@pytest.mark.parametrize("architecture", sorted(FIRST.keys() - WHOLE.keys()))
def test_two_ranks(architecture: str, tmp_path: Path) -> None:
    case = FIRST[architecture]
    settings = case.settings  # a vocabulary of 97 ids, which two ranks pad
    model = hf_models.make(architecture, case.seed, **settings)
    path = hf_models.save(model, tmp_path, case.old_style)
    r = random.Random(case.seed)
    text = [r.randrange(96) for _ in range(30)]
    want = hf_models.logits(model, text, case.decoded)
    for number, got in enumerate(split_logits(path, text, 2)):
        compare([got], [want], f"rank {number}")
    if AVAILABLE:
        for number, got in enumerate(native_split_logits(path, text, 2)):
            compare([got], [want], f"rank {number}, native")
