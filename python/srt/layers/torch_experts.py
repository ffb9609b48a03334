"""A mixture of experts (``layers.experts``) computed by torch: by grouped products of a Triton
kernel on a GPU, else expert by expert."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from sglang.srt.layers.experts import Experts, stack
from sglang.srt.layers.routing import route
from sglang.srt.layers.weight import Stored
from sglang.srt.numeric.torch_later import Tensor, torch

# Function of x [T, inputs], a paired layer and act: ``act(gate) * up`` of the layer's outputs.
Gate: TypeAlias = Callable[[Tensor, Stored, str], Tensor]


def mixture(layer: Experts, x: Tensor, gate: Gate) -> Tensor:
    """Return the outputs [T, width] for x [T, width], summed over the ranks, without adapters."""
    shape, group, router = layer.shape, layer.place.group, layer.router
    if router.packed is not None:
        return group.all_reduce(layer.native()(x.contiguous(), threads=router.threads))
    logits, n = router.logits(x), shape.routing.experts
    weights, chosen = route(logits[:, :n], shape.routing, router.choice_bias)
    if layer.grouped and "moe" not in layer.place.disabled:
        y = grouped(layer, x, weights, chosen)
    else:
        y = each(layer, x, weights, chosen, gate)
    if shape.shared:
        share = layer.down[n].product(gate(x, layer.gate_up[n], shape.act)).float()
        y += share * logits[:, n:].sigmoid() if shape.shared_gate else share
    return group.all_reduce(y.to(x.dtype))


def each(layer: Experts, x: Tensor, weights: Tensor, chosen: Tensor, gate: Gate) -> Tensor:
    """Compute the experts one after the other. Return float32 [T, width], not summed over ranks."""
    y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for e in chosen.unique().tolist():
        token, choice = (chosen == e).nonzero(as_tuple=True)
        inner = gate(x[token], layer.gate_up[e], layer.shape.act)
        part = layer.down[e].product(inner, layer.once(layer.down[e].bias))
        y.index_add_(0, token, weights[token, choice, None] * part)
    return y


def grouped(layer: Experts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
    """Compute all experts by grouped products; the host does not wait. Return as ``each``."""
    from sgl_kernel.triton import moe

    n, biased = layer.shape.routing.experts, layer.shape.bias
    gate_up, down = layer.gate_up[:n], layer.down[:n]
    y = moe.fused_moe(
        x, stack(gate_up), stack(down), weights.contiguous(), chosen.int(), layer.shape.act,
        gate_up_bias=stack(gate_up, "bias") if biased else None,
        down_bias=layer.once(stack(down, "bias") if biased else None),
    )  # fmt: skip
    return y.float()
