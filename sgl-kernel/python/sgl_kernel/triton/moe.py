"""Mixture of experts (Mixtral-like): routing, grouping of tokens by expert, grouped products.

Source of the layer: Jiang et al. 2024, "Mixtral of Experts", section 2.1. A *pair* is a token and
one of its choices, number ``token * top_k + choice``. Pairs are sorted by expert, so that a tile of
a product multiplies one expert's weights (MegaBlocks, Gale et al. 2022, with padded blocks).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from sgl_kernel.triton import checks
from sgl_kernel.triton import moe_kernels as kernels
from sgl_kernel.triton.norm import ACTIVATIONS

ACTS = {**ACTIVATIONS, "clamped_swiglu": "clamped_swiglu"}
# Pairs that a program of the sort looks at together. A size for each number of pairs would be a
# kernel of its own, compiled while a request waits.
SORTED = 1024


class Grouping(NamedTuple):
    """Pairs sorted by expert, each expert's run padded to a multiple of ``block``.

    Attributes:
        pairs: int32 [capacity]; padding is ``T * top_k``. What stands behind the last expert's run
            is undefined.
        experts: int32 [capacity / block], the expert of each block, -1 past the last.
        block: pairs of a block.
    """

    pairs: Tensor
    experts: Tensor
    block: int


def route(logits: Tensor, top_k: int, renormalise: bool = True) -> tuple[Tensor, Tensor]:
    """Softmax over experts, then the ``top_k`` largest (ties: lowest id).

    logits: [T, E], E <= 1024. Returns weights float32 and experts int32, both [T, top_k], largest
    first; with ``renormalise`` the weights add up to 1. Raises ValueError.
    """
    checks.shape("logits", logits, None, None)
    checks.dtype("logits", logits, *checks.FLOATS)
    tokens, experts = logits.shape
    if not 1 <= top_k <= experts <= 1024:
        checks.fail(f"top_k is {top_k} of {experts} experts; 1 <= top_k <= experts <= 1024")
    weights = logits.new_empty((tokens, top_k), dtype=torch.float32)
    chosen = logits.new_empty((tokens, top_k), dtype=torch.int32)
    if tokens:
        kernels.route[(tokens,)](
            logits, weights, chosen, experts, logits.stride(0), TOP_K=top_k,
            BLOCK=triton.next_power_of_2(experts), RENORMALISE=renormalise, num_warps=1,
        )  # fmt: skip
    return weights, chosen


def group_tokens(experts: Tensor, num_experts: int, block: int) -> Grouping:
    """A stable counting sort on the device, two launches. experts: int32 [T, top_k], each in
    ``[0, num_experts)``; block: 16, 32, 64 or 128. Raises ValueError."""
    checks.dtype("experts", experts, torch.int32)
    checks.shape("experts", experts, None, None)
    if not experts.is_contiguous() or not 1 <= num_experts <= 1024:
        checks.fail(f"experts must be contiguous and at most 1024, not {num_experts}")
    pairs = experts.numel()
    # Each expert that has any pairs has at most block - 1 of padding.
    blocks = (pairs + min(pairs, num_experts) * (block - 1)) // block
    order, owners = experts.new_empty(blocks * block), experts.new_empty(blocks)
    if pairs:
        counts = experts.new_empty(num_experts)
        kernels.count[(num_experts,)](experts, counts, pairs, BLOCK=SORTED, num_warps=4)
        kernels.place[(num_experts,)](
            experts, counts, order, owners, pairs, blocks, SIZE=block, EXPERTS=num_experts,
            BLOCK_E=triton.next_power_of_2(num_experts), BLOCK=SORTED, num_warps=4,
        )  # fmt: skip
    return Grouping(order, owners, block)


def choose_block(pairs: int, num_experts: int) -> int:
    """Pairs of a block: about what an expert gets, so that padding costs little."""
    share = pairs / num_experts
    return 16 if share <= 16 else 64 if share <= 96 else 128


def fused_moe(
    x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, experts: Tensor,
    activation: str = "silu", block: int = 0, gate_up_bias: Tensor | None = None,
    down_bias: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """sum over choices of weights * down[e] (act(gate) * up), in the order of the choices.

    x: [T, width]. gate_up: [E, 2 * inner, width], gates first. down: [E, width, inner]. weights:
    float32 [T, top_k]. experts: int32 [T, top_k], in [0, E). activation: as for ``norm.gate``, or
    "clamped_swiglu": gate * sigmoid(1.702 gate) * (up + 1), gate at most 7 and up within 7. Biases:
    [E, 2 * inner] and [E, width]. block: pairs of a tile, 0: by the number of tokens; a constant
    makes a token's bits independent of the batch. Five launches. Returns [T, width]. Raises
    ValueError.
    """
    _check(x, gate_up, down, weights, experts, activation)
    for name, bias, w in (("gate_up_bias", gate_up_bias, gate_up), ("down_bias", down_bias, down)):
        if bias is not None:
            checks.shape(name, bias, *w.shape[:2])
            checks.same_device(x, **{name: bias})
    tokens, width = x.shape
    inner, top_k, pairs = down.shape[2], experts.shape[1], experts.numel()
    out = x.new_empty(x.shape)
    if not tokens:
        return out
    block = block or choose_block(pairs, len(down))
    if block not in (16, 64, 128):
        checks.fail(f"block is {block}; 16, 64 or 128 is needed")
    grouping = group_tokens(experts, len(down), block)
    middle = x.new_empty(pairs, inner)
    _product(x, gate_up, gate_up_bias, middle, grouping, top_k, activation)
    parts = x.new_empty(pairs, width)
    _product(middle, down, down_bias, parts, grouping, 1, "")
    columns = min(1024, triton.next_power_of_2(width))
    kernels.join[(tokens, triton.cdiv(width, columns))](
        parts, weights, out, width, TOP_K=top_k, BLOCK=columns, num_warps=4
    )
    return out


def _product(
    x: Tensor, w: Tensor, bias: Tensor | None, out: Tensor, grouping: Grouping, top_k: int,
    activation: str,
) -> None:  # fmt: skip
    """``out[pair] = x[pair // top_k] @ w[expert].T + bias``; with an activation, gated."""
    pairs, columns = out.shape
    depth, block = x.shape[1], grouping.block
    # A block of 16 reads each weight once and computes little: deep, thin tiles.
    block_n, block_k = (64, 128) if block == 16 else (64 if activation else 128, 64)
    if x.element_size() == 4:
        block_n, block_k = 32, 32
    blocks = len(grouping.experts)
    kernels.product[(blocks * triton.cdiv(columns, block_n),)](
        x, w, w if bias is None else bias, out, grouping.pairs, grouping.experts, pairs, blocks,
        columns, depth, x.stride(0), w.stride(0), w.stride(1),
        0 if bias is None else bias.stride(0), out.stride(0), TOP_K=top_k, BLOCK_M=block,
        BLOCK_N=block_n, BLOCK_K=block_k, GROUP=8, GATED=bool(activation),
        ACT=ACTS.get(activation, ""), EVEN=depth % block_k == 0, BIASED=bias is not None,
        num_warps=8 if block == 128 else 4, num_stages=3,
    )  # fmt: skip


def _check(
    x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, experts: Tensor, activation: str
) -> None:
    checks.dtype("x", x, *checks.FLOATS)
    checks.shape("x", x, None, None)
    checks.shape("down", down, None, x.shape[1], None)
    checks.shape("gate_up", gate_up, down.shape[0], 2 * down.shape[2], x.shape[1])
    checks.dtype("gate_up", gate_up, x.dtype)
    checks.dtype("down", down, x.dtype)
    checks.shape("experts", experts, x.shape[0], None)
    checks.shape("weights", weights, *experts.shape)
    checks.dtype("weights", weights, torch.float32)
    checks.same_device(x, gate_up=gate_up, down=down, weights=weights, experts=experts)
    if not weights.is_contiguous():
        checks.fail(f"weights must be contiguous; their strides are {weights.stride()}")
    if activation not in ACTS:
        checks.fail(f"activation is {activation!r}; one of {', '.join(ACTS)} is needed")
