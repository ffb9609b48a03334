"""The layer of experts: one result however its weights are named, held, packed or split."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from sgl_kernel import native, reference
from sgl_kernel.experts import Routing as NativeRouting
from sgl_kernel.packed import Arena
from sglang.srt.layers import torch_experts
from sglang.srt.layers.experts import ExpertNames, Experts, ExpertsShape
from sglang.srt.layers.operations import TORCH
from sglang.srt.layers.routing import Routing
from sglang.srt.layers.torch_writer import TorchOperations
from sglang.srt.layers.weight import Place
from sglang.srt.models import weights
from sglang.srt.parallel.groups import Group
from torch import Tensor

RULE = Routing(6, 2, "sigmoid", renormalise=True, scale=1.5, groups=3, kept=2, group_best=2)
FULL = ExpertsShape(
    16, 12, RULE, act="clamped_swiglu", bias=True, router_bias=True, choice_bias=True
)
SHAPES = {
    "plain": ExpertsShape(16, 12, Routing(4, 2)),
    "shared": ExpertsShape(16, 12, Routing(4, 2, renormalise=True), shared=20),
    "gated": ExpertsShape(16, 12, Routing(4, 2), shared=8, shared_gate=True),
    "full": FULL,
}


@dataclass(frozen=True)
class Part(Group):
    """A rank whose sums are left to the test."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x


def tensors(shape: ExpertsShape) -> dict[str, Tensor]:
    """A checkpoint: random weights by name."""
    slots = Experts(shape, Place(torch.device("meta"), torch.float32)).slots("mlp.")
    g = torch.Generator().manual_seed(len(slots))
    return {name: torch.randn(slot.shape, generator=g) * 0.5 for name, slot in slots.items()}


def build(shape: ExpertsShape, source: dict[str, Tensor], group: Group | None = None) -> Experts:
    layer = Experts(shape, Place(torch.device("cpu"), torch.float32, group or Group()))
    slots = layer.slots("mlp.")
    assert {name: slot.shape for name, slot in slots.items()} == {
        name: tensor.shape for name, tensor in source.items()
    }
    for name, slot in slots.items():
        slot.load(source[name].numpy())
    return layer


def output(layer: Experts, x: Tensor) -> Tensor:
    return torch_experts.mixture(layer, x, TorchOperations(TORCH).gate)


def pack(layer: Experts, format: str = "f32") -> Experts:
    arena = Arena(1 << 16)
    for stored in layer.stored():
        stored.pack("f32" if stored.exact else format, 1, arena)
    return layer


def exact(shape: ExpertsShape, source: dict[str, Tensor], x: Tensor) -> Tensor:
    """Output in float64, from the tensors of single experts."""
    rule, names = shape.routing, shape.names
    get = {name.removeprefix("mlp."): tensor.double() for name, tensor in source.items()}
    router = [get[n] for n in ("gate.weight", "shared_expert_gate.weight") if n in get]
    ids: list[Any] = [*range(rule.experts)]

    def parts(*which: str, kind: str = "weight") -> list[Tensor]:
        out = [torch.cat([get[f"{w.format(e)}.{kind}"] for w in which]) for e in ids]
        if shape.shared and kind == "weight":
            shared = [get[f"{names.shared}.{w.split('.')[-1]}.weight"] for w in which]
            out.append(torch.cat(shared))
        return out

    biases: tuple[Any, Any] = (None, None)
    if shape.bias:
        biases = (
            parts(names.gate, names.up, kind="bias"), parts(names.down, kind="bias"),
        )  # fmt: skip
    bias = get.get("gate.e_score_correction_bias")
    return reference.experts(
        x.double(),
        NativeRouting(
            rule.experts, rule.top_k, rule.scores == "sigmoid", rule.renormalise, rule.scale,
            rule.groups, rule.kept, rule.group_best, bias,
        ),
        torch.cat(router), parts(names.gate, names.up), parts(names.down), shape.act,
        get.get("gate.bias"), *biases,
    )  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_equals_the_definition(name: str) -> None:
    shape = SHAPES[name]
    source = tensors(shape)
    layer = build(shape, source)
    x = torch.randn(40, 16, generator=torch.Generator().manual_seed(3))
    want = exact(shape, source, x)
    assert (output(layer, x) - want).abs().max() < 1e-5
    if native.AVAILABLE:
        assert (output(pack(layer), x) - want).abs().max() < 1e-5


def test_fused_names() -> None:
    """Two tensors for all experts, transposed, gates and what they gate in turn."""
    source = tensors(FULL)
    fused = {n: t for n, t in source.items() if ".experts." not in n}
    for kind, suffix in (("weight", ""), ("bias", "_bias")):
        columns = {
            part: torch.stack([source[f"mlp.experts.{e}.{part}_proj.{kind}"].t() for e in range(6)])
            for part in ("gate", "up", "down")
        }
        pairs = torch.stack([columns["gate"], columns["up"]], -1).flatten(-2)
        fused[f"mlp.experts.gate_up_proj{suffix}"] = pairs
        fused[f"mlp.experts.down_proj{suffix}"] = columns["down"]
    shape = replace(FULL, names=ExpertNames(fused=True))
    x = torch.randn(20, 16)
    want = output(build(FULL, source), x)
    assert torch.equal(output(build(shape, fused), x), want)
    parts = [output(build(shape, fused, Part(rank, 2)), x) for rank in range(2)]
    assert (parts[0] + parts[1] - want).abs().max() < 1e-5
    if native.AVAILABLE:
        assert (output(pack(build(shape, fused)), x) - want).abs().max() < 1e-5


@pytest.mark.parametrize("name", SHAPES)
def test_ranks_hold_parts(name: str) -> None:
    shape = SHAPES[name]
    source = tensors(shape)
    x = torch.randn(10, 16)
    want = output(build(shape, source), x)
    ranks = [build(shape, source, Part(rank, 2)) for rank in range(2)]
    assert ranks[0].down[0].weight.shape == (16, 6)
    parts = [output(rank, x) for rank in ranks]
    assert (parts[0] + parts[1] - want).abs().max() < 1e-5
    if native.AVAILABLE:
        parts = [output(pack(rank), x) for rank in ranks]
        assert (parts[0] + parts[1] - want).abs().max() < 1e-5


@pytest.mark.skipif(not native.AVAILABLE, reason=f"no extension: {native.WHY}")
@pytest.mark.parametrize("fused", [False, True])
def test_nothing_is_kept_twice(fused: bool) -> None:
    """Every weight goes when all of it has been read and packed, one expert after the other."""
    shape = replace(FULL, names=ExpertNames(fused=fused), bias=False)
    layer = Experts(shape, Place(torch.device("cpu"), torch.float32))
    arena, packed = Arena(1 << 16), []
    owners: dict[int, list[Any]] = {}
    for stored in layer.stored():
        owners.setdefault(stored.weight.untyped_storage().data_ptr(), []).append(stored)
    before = set(owners)

    def filled(weight: Tensor) -> None:
        packed.append(weight.untyped_storage().data_ptr())
        for stored in owners.get(packed[-1], ()):
            stored.pack("f32", 1, arena)

    weights.randomise(layer.slots("mlp."), 1, show=False, filled=filled)
    assert len(set(packed) & before) == len(before) == (3 if fused else 13)
    assert output(layer, torch.randn(3, 16)).isfinite().all()
    assert all(stored.inside for stored in layer.stored()[1:]), "adapters would be left out"
    kept = [
        t.shape
        for t in gc.get_objects()
        if issubclass(type(t), torch.Tensor)
        and t.numel()
        and t.untyped_storage().data_ptr() in before
    ]
    assert not kept, kept


@pytest.mark.skipif(not native.AVAILABLE, reason=f"no extension: {native.WHY}")
@pytest.mark.parametrize(("format", "bound"), [("w8", 0.01), ("w4", 0.01), ("w8a8", 0.04)])
def test_quantised_experts_are_what_their_weights_say(format: str, bound: float) -> None:
    """Errors against the dequantised weights in float64; the router is not quantised. Bounds are
    relative to a row's largest value: bf16 keeps 8 bits of activations, w8a8 7."""
    shape = replace(SHAPES["gated"], width=96, inner=80, shared=72)
    source = tensors(shape)
    layer = pack(build(shape, source), format)
    dequantised = dict(source)
    for e in range(4):
        gate_up, down = layer.gate_up[e].packed, layer.down[e].packed
        assert gate_up is not None
        assert down is not None
        assert gate_up.format == down.format == format
        gate, up = gate_up.rows(torch.arange(160)).chunk(2)
        dequantised[f"mlp.experts.{e}.gate_proj.weight"] = gate
        dequantised[f"mlp.experts.{e}.up_proj.weight"] = up
        dequantised[f"mlp.experts.{e}.down_proj.weight"] = down.rows(torch.arange(96))
    shared_up, shared_down = layer.gate_up[4].packed, layer.down[4].packed
    assert shared_up is not None
    assert shared_down is not None
    gate, up = shared_up.rows(torch.arange(144)).chunk(2)
    dequantised["mlp.shared_expert.gate_proj.weight"] = gate
    dequantised["mlp.shared_expert.up_proj.weight"] = up
    dequantised["mlp.shared_expert.down_proj.weight"] = shared_down.rows(torch.arange(96))
    assert not torch.equal(
        dequantised["mlp.experts.0.down_proj.weight"], source["mlp.experts.0.down_proj.weight"]
    )
    x = torch.randn(50, 96, generator=torch.Generator().manual_seed(3))
    want = exact(shape, dequantised, x)
    error = (output(layer, x) - want).abs().amax(-1) / want.abs().amax(-1)
    assert error.max() < bound


def test_routing_that_cannot_be() -> None:
    wrong: list[dict[str, Any]] = [
        {"top_k": 7}, {"top_k": 0}, {"groups": 4}, {"top_k": 5}, {"group_best": 3},
    ]  # fmt: skip
    for changes in wrong:
        with pytest.raises(ValueError, match=r"experts cannot be|groups of"):
            replace(RULE, **changes)


@pytest.mark.parametrize("name", SHAPES)
def test_experts_without_their_fused_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights lie side by side, as on a GPU, and are multiplied expert by expert."""
    shape, x = SHAPES[name], torch.randn(5, 16)
    source = tensors(shape)
    want = output(build(shape, source), x)
    layer = build(shape, source)
    layer.grouped = True
    with monkeypatch.context() as patch:
        patch.setattr(torch_experts, "grouped", lambda *_: pytest.fail("the kernel is disabled"))
        layer.place = replace(layer.place, disabled=("moe",))
        assert torch.equal(output(layer, x), want)
        layer.place = replace(layer.place, disabled=())
        patch.setattr(torch_experts, "grouped", lambda _, x, *__: torch.zeros(x.shape))
        assert not torch.equal(output(layer, x), want)
