"""The mixture of experts by fused kernels against its definition in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from helpers import gpu_device
from helpers.gpu_device import DEVICE, DTYPE, ON_GPU
from torch import Tensor

gpu_device.needs_device()
gpu_device.needs("triton")

from sgl_kernel.triton import moe  # noqa: E402

# Tokens, width, inner, experts, choices of a token.
SIZES = (
    [(1, 1024, 512, 8, 2), (33, 512, 384, 16, 4), (1000, 1024, 512, 8, 2), (7, 96, 80, 3, 1)]
    if ON_GPU
    else [(5, 32, 16, 4, 2), (3, 48, 24, 3, 1)]
)


def definition(
    x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, experts: Tensor
) -> Tensor:
    """One token and one choice after the other, in float64."""
    x, gate_up, down, weights = (t.double().cpu() for t in (x, gate_up, down, weights))
    out = torch.zeros(x.shape, dtype=torch.float64)
    for token, chosen in enumerate(experts.tolist()):
        for choice, expert in enumerate(chosen):
            gate, up = (gate_up[expert] @ x[token]).chunk(2)
            out[token] += weights[token, choice] * (down[expert] @ (F.silu(gate) * up))
    return out


@pytest.mark.parametrize("size", SIZES)
def test_equals_the_definition(size: tuple[int, int, int, int, int]) -> None:
    tokens, width, inner, count, top_k = size
    torch.manual_seed(tokens)
    x = torch.randn(tokens, width, dtype=DTYPE, device=DEVICE)
    gate_up = torch.randn(count, 2 * inner, width, dtype=DTYPE, device=DEVICE) * width**-0.5
    down = torch.randn(count, width, inner, dtype=DTYPE, device=DEVICE) * inner**-0.5
    scores = torch.randn(tokens, count, device=DEVICE)
    weights, experts = moe.route(scores, top_k)
    order = scores.double().softmax(-1).sort(dim=-1, descending=True)
    assert experts.tolist() == order.indices[:, :top_k].tolist()
    share = order.values[:, :top_k]
    share = share / share.sum(-1, keepdim=True)
    torch.testing.assert_close(weights.double(), share, rtol=1e-5, atol=1e-6)
    got = moe.fused_moe(x, gate_up, down, weights, experts).double().cpu()
    want = definition(x, gate_up, down, weights, experts)
    error = (got - want).norm() / want.norm()
    assert error < (1e-2 if ON_GPU else 1e-5)
