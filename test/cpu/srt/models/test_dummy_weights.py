"""``--load-format dummy`` needs a config alone, for every architecture."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers import hf_models
from helpers.paged import Paged, Sequence
from helpers.parity import Case, all_cases

FIRST = {case.architecture: case for case in all_cases() if isinstance(case, Case)}


@pytest.mark.parametrize("architecture", sorted(FIRST))
def test_dummy_weights(architecture: str, tmp_path: Path) -> None:
    config = hf_models.config(architecture, **FIRST[architecture].settings)
    config.architectures = [architecture]
    (tmp_path / "config.json").write_text(json.dumps(config.to_dict(), default=str))
    seen = []
    for kernels in ("native", "torch"):
        paged = Paged(str(tmp_path), 4, 1, cpu_kernels=kernels, load_format="dummy")
        sequence = Sequence(list(range(20)))
        paged.advance([(sequence, 20)])
        seen.append(sequence.result)
    assert seen[0].isfinite().all()
    assert seen[0].std() > 0.01
    assert (seen[0] - seen[1]).abs().max() < 1e-4
