"""Bytes of a model's weights as they are loaded, against the shapes of its layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.paged import Paged
from helpers.tiny_model import write_config

V, H, INNER, LAYERS = 512, 64, 256, 3  # vocabulary, hidden size, inner size
EMBEDDING = V * H
MATRICES = LAYERS * (4 * H * H + 3 * H * INNER)
NORMS = (2 * LAYERS + 1) * H


def held(directory: Path, **options: Any) -> int:
    """The bytes of a model whose output head is not its embedding."""
    path = write_config(
        directory, vocab_size=V, hidden_size=H, intermediate_size=INNER, num_hidden_layers=LAYERS,
        num_attention_heads=4, num_key_value_heads=4, head_dim=H // 4, tie_word_embeddings=False,
    )  # fmt: skip
    info = Paged(path, 16, 1, load_format="dummy", **options).worker.info
    assert info["parameters"] == 2 * EMBEDDING + MATRICES + NORMS
    return int(info["weight_bytes"])


@pytest.mark.parametrize(("dtype", "each"), [("float32", 4), ("bfloat16", 2)])
@pytest.mark.parametrize("kernels", ["torch", "native"])
def test_floats_take_what_their_dtype_does(
    tmp_path: Path, kernels: str, dtype: str, each: int
) -> None:
    numbers = 2 * EMBEDDING + MATRICES + NORMS
    found = held(tmp_path, dtype=dtype, cpu_kernels=kernels)
    assert each * numbers <= found <= each * numbers + 4 * NORMS


@pytest.mark.parametrize(
    ("quantization", "matrix", "head"), [("int8", 1.0, 1.0), ("int8wo", 1.0, 1.0), ("int4", 0.5, 1)]
)
def test_quantised_matrices_take_their_bits_and_scales(
    tmp_path: Path, quantization: str, matrix: float, head: float
) -> None:
    found = held(tmp_path, dtype="float32", cpu_kernels="native", quantization=quantization)
    least = 4 * (EMBEDDING + NORMS) + matrix * MATRICES + head * EMBEDDING
    assert least < found < least * 1.1
