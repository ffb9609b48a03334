"""A mixture of experts whose weights are quantised while they are loaded."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from helpers import hf_models
from helpers.paged import Paged, Sequence
from sgl_kernel import native
from torch import Tensor

pytestmark = pytest.mark.skipif(not native.AVAILABLE, reason=f"no extension: {native.WHY}")

SHAPE: dict[str, Any] = {
    "hidden_size": 64, "head_dim": 16, "intermediate_size": 96, "initializer_range": 0.125,
    "num_local_experts": 4,
}  # fmt: skip
# ||logits - float32's|| / ||float32's|| of random weights, the median of the tokens. (Not the
# worst: where two experts are nearly as good, rounding may take the other one.)
BOUNDS = {"int8wo": 0.04, "int8": 0.06, "int4": 0.5}


@pytest.mark.parametrize("top_k", [4, 2])
def test_logits_are_near(top_k: int, tmp_path: Path) -> None:
    model = hf_models.make("MixtralForCausalLM", **SHAPE, num_experts_per_tok=top_k)
    path = hf_models.save(model, tmp_path)
    r = random.Random(top_k)
    text = [r.randrange(97) for _ in range(40)]
    want = hf_models.logits(model, text)
    found = {}
    for quantization, bound in BOUNDS.items():
        got = run(path, text, quantization)
        errors = (got - want).norm(dim=-1) / want.norm(dim=-1)
        found[quantization] = float(errors.median())
        assert 1e-4 < found[quantization] < bound, found


def run(path: str, text: list[int], quantization: str) -> Tensor:
    """Logits of a text computed in chunks; asserts the same bits for the text in one piece."""
    paged = Paged(path, 4, 0, quantization=quantization, cpu_kernels="native")
    parts, whole = Sequence(text), Sequence(text)
    while parts.done < len(text):
        paged.advance([(parts, min(7, len(text) - parts.done))])
    paged.advance([(whole, len(text))])
    assert parts.result.equal(whole.result)
    return whole.result
