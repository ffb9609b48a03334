"""Mixture of experts: a layer of many feed-forward networks. A token goes through a few of them
(Jiang et al. 2024, "Mixtral of Experts", section 2.1), and in some models through one shared expert
(Dai et al. 2024, "DeepSeekMoE", section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from sglang.srt.attention.backend_choice import triton_lacks
from sglang.srt.layers.linear import ColumnLinear, RowLinear
from sglang.srt.layers.routing import Routing
from sglang.srt.layers.weight import OutlinePlace, Place, Slot, Slots, Stored
from sglang.srt.numeric.host_arrays import Weight, numpy_dtype, stacked
from sglang.srt.numeric.torch_later import F, Tensor

if TYPE_CHECKING:
    from sgl_kernel.experts import Experts as NativeExperts
    from sgl_kernel.packed import Packed


@dataclass(frozen=True)
class ExpertNames:
    """Names of the weights in a checkpoint; ``{}`` is an expert's number.

    ``fused``: the experts' matrices are two tensors, ``experts.gate_up_proj`` [experts, width,
    2 inner], gate and up outputs in turn, and ``experts.down_proj`` [experts, inner, width].
    """

    router: str = "gate"
    gate: str = "experts.{}.gate_proj"
    up: str = "experts.{}.up_proj"
    down: str = "experts.{}.down_proj"
    shared: str = "shared_expert"
    shared_gate: str = "shared_expert_gate"
    fused: bool = False


@dataclass(frozen=True)
class ExpertsShape:
    """Sizes of a mixture layer of the whole model (a rank holds a share of each inner width).

    Attributes:
        inner: inner width of an expert.
        bias: the experts' matrices have biases. router_bias: the router has one.
        choice_bias: the layer has the ``bias`` of ``layers.routing.route``.
        shared: inner width of the shared expert, which every token goes through; 0: none.
        shared_gate: the shared expert's output is multiplied by the sigmoid of a gate.
    """

    width: int
    inner: int
    routing: Routing
    act: str = "silu"
    bias: bool = False
    router_bias: bool = False
    choice_bias: bool = False
    shared: int = 0
    shared_gate: bool = False
    names: ExpertNames = ExpertNames()


class ExpertRouter(Stored):
    """Computes float32 logits [T, experts]; with ``shared_gate`` one more column, the gate's."""

    exact = True

    def __init__(self, shape: ExpertsShape, place: Place) -> None:
        self.rule, self.names = shape.routing, shape.names
        rows = self.rule.experts
        self.weight = place.empty(rows + shape.shared_gate, shape.width)
        self.bias = place.floats(len(self.weight)) if shape.router_bias else None
        self.choice_bias = place.floats(rows) if shape.choice_bias else None

    def logits(self, x: Tensor) -> Tensor:
        if self.packed is not None:
            return self.product(x, self.bias)
        return F.linear(x.float(), self.weight.float(), self.bias)

    def slots(self, prefix: str) -> Slots:
        name, n, width = f"{prefix}{self.names.router}", self.rule.experts, self.weight.shape[1]
        out = {f"{name}.weight": Slot(self.weight[:n], (n, width))}
        if len(self.weight) > n:
            gate = f"{prefix}{self.names.shared_gate}.weight"
            out[gate] = Slot(self.weight[n:], (1, width))
        if self.bias is not None:
            out[f"{name}.bias"] = Slot(self.bias, (n,), kind="bias")
        if self.choice_bias is not None:
            bias = f"{name}.e_score_correction_bias"
            out[bias] = Slot(self.choice_bias, (n,), kind="bias")
        return out


class ExpertWriter(Protocol):
    """The method of ``layers.pass_writer.PassWriter`` for a mixture of experts."""

    def experts(self, layer: Experts, x: Any) -> None:
        """Add the layer's outputs, summed over the ranks, to the residual stream."""


class Experts:
    """``sum of weight * down(act(gate(x)) * up(x))`` over the experts that a token is routed to."""

    def __init__(self, shape: ExpertsShape, place: Place) -> None:
        self.shape, self.place, names = shape, place, shape.names
        self.router = ExpertRouter(shape, place)
        self._native: NativeExperts | None = None
        self.grouped = place.device.type == "cuda" and not triton_lacks(place.device)
        stacked = names.fused or self.grouped
        build = place
        if stacked:  # ``side_by_side`` makes one tensor with all experts' weights
            build = OutlinePlace(place.device, numpy_dtype(place.dtype), place.group)
        self.gate_up: list[ColumnLinear] = []
        self.down: list[RowLinear] = []
        for e in range(shape.routing.experts):
            parts = {names.gate.format(e): shape.inner, names.up.format(e): shape.inner}
            self.gate_up.append(ColumnLinear(shape.width, parts, shape.bias, build, paired=True))
            self.down.append(
                RowLinear(shape.inner, names.down.format(e), shape.width, shape.bias, build)
            )
        if stacked:
            side_by_side(self.gate_up, place)
            side_by_side(self.down, place)
        if shape.shared:
            gate, up = (f"{names.shared}.{part}_proj" for part in ("gate", "up"))
            parts = {gate: shape.shared, up: shape.shared}
            self.gate_up.append(ColumnLinear(shape.width, parts, False, place, paired=True))
            self.down.append(
                RowLinear(shape.shared, f"{names.shared}.down_proj", shape.width, False, place)
            )

        for layer in (*self.gate_up, *self.down):
            layer.inside = True

    def write(self, w: ExpertWriter, x: Any) -> None:
        w.experts(self, x)

    def once(self, bias: Weight | None) -> Weight | None:
        """Return ``bias`` on rank 0, else None: a sum over the ranks adds a bias only once."""
        return bias if self.place.group.rank == 0 else None

    def native(self) -> NativeExperts:
        """Return the layer as one native operation. All matrices must be packed."""
        if self._native is None:
            from sgl_kernel import experts

            rule, router = self.shape.routing, self.router
            self._native = experts.Experts(
                experts.Routing(
                    rule.experts, rule.top_k, rule.scores == "sigmoid", rule.renormalise,
                    rule.scale, rule.groups, rule.kept, rule.group_best, router.choice_bias,
                ),
                packed(router), [packed(x) for x in self.gate_up], [packed(x) for x in self.down],
                self.shape.act, router.bias, [x.bias for x in self.gate_up],
                [self.once(x.bias) for x in self.down],
            )  # fmt: skip
        return self._native

    def stored(self) -> list[Stored]:
        return [self.router, *self.gate_up, *self.down]

    def slots(self, prefix: str) -> Slots:
        out = self.router.slots(prefix)
        layers: list[ColumnLinear | RowLinear] = [*self.gate_up, *self.down]
        if self.shape.names.fused:
            n = self.shape.routing.experts
            out |= self._fused_slots(f"{prefix}experts.")
            layers = [*self.gate_up[n:], *self.down[n:]]
        for layer in layers:
            out |= layer.slots(prefix)
        return out

    def _fused_slots(self, prefix: str) -> Slots:
        shape, n = self.shape, self.shape.routing.experts
        width, inner, rank = shape.width, shape.inner, self.place.group.rank
        gate_up, down = stack(self.gate_up[:n]), stack(self.down[:n])
        start = rank * down.shape[2]
        out = {
            f"{prefix}gate_up_proj": Slot(
                halves(gate_up), (n, width, 2 * inner), 2, start,
                adapt=lambda w: w.reshape(*w.shape[:2], -1, 2).transpose(0, 3, 2, 1),
            ),
            f"{prefix}down_proj": Slot(
                down, (n, inner, width), 2, start, adapt=lambda w: w.transpose(0, 2, 1)
            ),
        }  # fmt: skip
        if shape.bias:
            out[f"{prefix}gate_up_proj_bias"] = Slot(
                halves(stack(self.gate_up[:n], "bias")), (n, 2 * inner), 2, start,
                "bias", lambda b: b.reshape(len(b), -1, 2).transpose(0, 2, 1),
            )  # fmt: skip
            out[f"{prefix}down_proj_bias"] = Slot(
                stack(self.down[:n], "bias"), (n, width), kind="bias"
            )
        return out


def side_by_side(layers: Sequence[Stored], place: Place) -> None:
    """Set the weights and biases of layers of one shape to views of one tensor each."""
    weights = place.empty(len(layers), *layers[0].weight.shape)
    for layer, weight in zip(layers, weights):
        layer.weight = weight
    if layers[0].bias is not None:
        biases = place.empty(len(layers), *layers[0].bias.shape)
        for layer, bias in zip(layers, biases):
            layer.bias = bias


def packed(layer: Stored) -> Packed:
    assert layer.packed is not None
    return layer.packed


def halves(x: Weight) -> Weight:
    """Return a view [experts, 2, n, ...] of ``x`` [experts, 2 n, ...]."""
    return x.reshape(len(x), 2, -1, *x.shape[2:])


def stack(layers: Sequence[Stored], what: str = "weight") -> Weight:
    """Return the tensor [layers, ...] whose views ``side_by_side`` assigned to the layers. No layer
    keeps that tensor, because packing frees the weights."""
    first = getattr(layers[0], what)
    if isinstance(first, np.ndarray):
        return stacked(first, len(layers))
    return first.as_strided((len(layers), *first.shape), (first.numel(), *first.stride()), 0)
