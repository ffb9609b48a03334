"""Operations of layers between their products, and the angles that are looked up for them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch
from sglang.srt.config.sections import FUSED_KERNELS, LAYER_KERNELS
from sglang.srt.layers.activations import CLAMPED_SWIGLU, gated
from sglang.srt.layers.linear import RowLinear
from sglang.srt.layers.norm import LayerNorm, RMSNorm
from sglang.srt.layers.operations import TORCH, operations_of
from sglang.srt.layers.rotary import Rope, Rotary, SectionedRotary
from sglang.srt.layers.torch_writer import ForwardStep, TorchOperations, TorchWriter
from sglang.srt.layers.weight import Place
from torch import Tensor

CPU = torch.device("cpu")
PLACE = Place(CPU, torch.float32)
NO_ATTENTION: Any = None
STEP = ForwardStep(torch.zeros(0), NO_ATTENTION)
needs_triton = pytest.mark.skipif(
    find_spec("triton") is None, reason="needs triton, which has no build for this system"
)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_a_cpu_has_torchs_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    assert operations_of(CPU) is TORCH
    assert Place(CPU, torch.float32).operations is TORCH


@needs_triton
def test_disabled_kernels_are_torchs_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    from sglang.srt.layers.fused_kernels import KERNELS

    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert tuple(KERNELS) == LAYER_KERNELS
    assert set(KERNELS) <= set(FUSED_KERNELS)
    assert operations_of(CPU, LAYER_KERNELS) == TORCH
    for name, fields in KERNELS.items():
        found = operations_of(CPU, [name])
        for other, functions in KERNELS.items():
            for field, function in functions.items():
                want = getattr(TORCH, field) if other == name else function
                assert getattr(found, field) is want, (name, field)
        assert fields


@needs_triton
def test_an_activation_without_a_kernel_is_torchs() -> None:
    from sglang.srt.layers import fused_kernels

    x = random(3, 8)
    assert torch.equal(fused_kernels.gate(x, CLAMPED_SWIGLU), gated(x, CLAMPED_SWIGLU))


def test_the_stream_is_the_sum_of_its_parts() -> None:
    x, more = random(3, 8), random(4, 8)[1:]
    inner, outer, layer = (
        RMSNorm(8, 1e-5, PLACE),
        RMSNorm(8, 1e-5, PLACE),
        LayerNorm(8, 1e-5, PLACE),
    )
    for weight in (inner.weight, outer.weight, layer.weight, layer.bias):
        assert weight is not None
        weight.copy_(random(8, len(weight))[0])
    words = TorchOperations(TORCH)
    normed = words.norm(more, inner)
    for pending, norm, want in ((None, None, x), (more, None, x + more), (more, inner, x + normed)):
        for read in (None, outer, layer):
            w = TorchWriter(TORCH, x, STEP)
            w.pending, w.pending_norm = pending, norm
            assert torch.equal(w.read(read), want if read is None else words.norm(want, read))
            assert w.pending is None
            assert torch.equal(w.x, want)


def test_additions_are_made_in_the_order_they_are_said() -> None:
    x = random(3, 8)
    parts = [RowLinear(8, "", 8, True, PLACE) for _ in range(2)]
    for seed, part in enumerate(parts):
        part.weight.copy_(random(8, 8 + seed)[:, :8])
        assert part.bias is not None
        part.bias.copy_(random(8))
    w = TorchWriter(TORCH, x, STEP)
    for part in parts:
        w.add(part, x)
    want = x
    for part in parts:
        want = want + part.product(x, part.bias)
    assert torch.equal(w.end(None), want)


def gathered(rotary: Rotary, positions: Tensor) -> Tensor:
    table, rows = rotary.rows(positions)
    assert table.is_contiguous()
    assert rows.dtype == torch.int32
    return table[rows.long()]


def test_rows_of_angles_are_the_angles() -> None:
    positions = torch.tensor([[3, 0, 9, 9], [1, 2, 3, 4], [5, 0, 7, 6]], dtype=torch.int32)
    plain = Rotary(Rope(partial=0.5), 16, 12, torch.float32, CPU)
    assert torch.equal(gathered(plain, positions[0]), torch.stack(plain.at(positions[0]), 1))
    sections = SectionedRotary(Rope(), (2, 3, 3), 12, torch.float32, CPU)
    for where in (positions, positions[1]):
        assert torch.equal(gathered(sections, where), torch.stack(sections.at(where), 1))
