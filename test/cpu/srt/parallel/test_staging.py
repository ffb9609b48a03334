"""Packed copies: what arrives is what was sent, at addresses that kernels are compiled for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sglang.srt.parallel.staging import ALIGNMENT, aligned_offsets, send_all

CPU = torch.device("cpu")


def test_arrays_of_any_dtype_arrive_aligned() -> None:
    r = np.random.default_rng(0)
    arrays = {
        "counts": r.integers(-9, 9, 5).astype(np.int32), "none": np.zeros(0, dtype=np.int32),
        "uniform": r.random(3), "pairs": r.integers(0, 9, (7, 2)).astype(np.int64),
        "turned": r.random((3, 2)).astype(np.float32).T, "last": np.array([7], dtype=np.int32),
    }  # fmt: skip
    sent = send_all(arrays, CPU)
    assert list(sent) == list(arrays)
    for name, array in arrays.items():
        assert sent[name].data_ptr() % ALIGNMENT == 0 or not array.size
        assert torch.equal(sent[name], torch.from_numpy(array.copy()))
        assert sent[name].is_contiguous()


@pytest.mark.parametrize(
    ("sizes", "unit", "want"),
    [([], 4, [0]), ([1, 0, 4, 5], 4, [0, 4, 4, 8, 16]), ([3, 16, 17], 1, [0, 16, 32, 64])],
)
def test_offsets_are_multiples_of_the_alignment(
    sizes: list[int], unit: int, want: list[int]
) -> None:
    assert aligned_offsets(sizes, unit) == want
