"""Cases of the append, norm, gate and mixture-of-experts kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.triton_place import Place
from sgl_kernel.triton import append, moe, norm, reference
from sglang.srt.layers import weight
from sglang.srt.layers.experts import ExpertNames, Experts, ExpertsShape
from sglang.srt.layers.operations import TORCH
from sglang.srt.layers.routing import Routing
from sglang.srt.layers.torch_experts import mixture as mixture_of
from sglang.srt.layers.torch_writer import TorchOperations
from torch import Tensor


def written(place: Place) -> None:
    """Negative slots are left out, strides are respected, nothing else is touched."""
    for heads, dim in ((1, 16), (3, 20), (8, 128)):
        k, v = (place.random(5, heads + 2, dim)[:, 1:-1] for _ in range(2))
        pools = [place.random(9, 2, heads, dim)[:, 1] for _ in range(2)]
        wanted = [pool.clone() for pool in pools]
        slots = place.ints([3, -1, 0, 8, 5])
        append.append(k, v, pools[0], pools[1], slots)
        reference.append(k, v, wanted[0], wanted[1], slots)
        assert all(map(torch.equal, pools, wanted))


def written_float8(place: Place) -> None:
    """Round to nearest; values beyond 448 become 448, and NaN stays."""
    k = place.random(4, 2, 16, dtype=torch.float32) * 300
    k[0, 0, :3] = torch.tensor([1e4, -1e4, 460.0])
    if k.is_cuda:  # the interpreter makes a number of it
        k[0, 0, 3] = float("nan")
    pools = [torch.zeros(4, 2, 16, device=place.device).to(torch.float8_e4m3fn) for _ in "kv"]
    append.append(k, k, pools[0], pools[1], place.ints([2, 0, 1, 3]))
    wanted = k[[1, 2, 0, 3]].clamp(-448, 448).to(torch.float8_e4m3fn)
    for pool in pools:
        assert torch.equal(pool.float().nan_to_num(999.0), wanted.float().nan_to_num(999.0))


def rotated(place: Place) -> None:
    """Heads that turn whole and in part, with norms and without."""
    for dim, turned, normed in (
        (24, 24, False), (64, 64, True), (80, 80, True), (128, 128, False), (80, 32, True),
        (64, 6, False),
    ):  # fmt: skip
        turns = place.random(11, turned // 2, dtype=torch.float32)
        cos, sin = turns.cos(), turns.sin()
        angles = torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], 1)
        angles = angles.unsqueeze(2).to(place.dtype)
        qkv, positions = place.random(5, 8 * dim + 3)[:, 3:], place.ints([3, 10, 0, 4, 4])
        slots = place.ints([3, -1, 0, 8, 5])
        pools = [torch.zeros(9, 2, dim, dtype=place.dtype, device=place.device) for _ in "kv"]
        exact = [pool.double() for pool in pools]
        options: dict[str, Any] = {"heads": 4, "eps": 1e-5}
        if normed:
            options |= {"q_norm": place.random(dim), "k_norm": place.random(dim)}
        q = append.rotate_append(qkv, angles, positions, pools[0], pools[1], slots, **options)
        truth = reference.rotate_append(
            qkv, angles, positions, exact[0], exact[1], slots, **options
        )
        place.close(q, truth)
        place.close(pools[0], exact[0])
        place.close(pools[1], exact[1])
    wide = place.random(11, 2, 66)
    with pytest.raises(ValueError, match=r"angles are of 66 dimensions; .* up to head_dim \(64\)"):
        append.rotate_append(qkv, wide, positions, pools[0], pools[1], slots, heads=4)


def rotated_float8(place: Place) -> None:
    """Keys are narrowed after the rotation, as ``append`` narrows; queries stay as they are."""
    qkv, angles = place.random(3, 4 * 16), place.random(5, 2, 16)
    angles[:, 0, 8:], angles[:, 1, 8:] = angles[:, 0, :8], -angles[:, 1, :8]
    layer = (qkv, angles, place.ints([4, 0, 2]))
    pools = [torch.zeros(4, 1, 16, device=place.device) for _ in "kv"]
    narrow = [pool.to(torch.float8_e4m3fn) for pool in pools]
    slots = place.ints([2, 0, 3])
    q = append.rotate_append(*layer, pools[0], pools[1], slots, heads=2)
    assert torch.equal(append.rotate_append(*layer, narrow[0], narrow[1], slots, heads=2), q)
    wanted = [torch.zeros_like(pool) for pool in narrow]
    k, v = (pool[slots.long()] for pool in pools)
    append.append(k, v, wanted[0], wanted[1], slots)
    for pool, want in zip(narrow, wanted):
        assert pool.float().any()
        assert torch.equal(pool.float(), want.float())


def norms(place: Place) -> None:
    for width in (1, 37, 1024, 5000):
        x, residual, weight = place.random(3, width), place.random(3, width), place.random(width)
        place.close(norm.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
        total = (x.float() + residual.float()).to(x.dtype)
        kept = x.clone()
        out = norm.add_rms_norm(x, residual, weight, 1e-5)
        assert torch.equal(x, kept)
        assert torch.equal(residual, total)
        place.close(out, reference.rms_norm(total, weight, 1e-5))
        inner, more = place.random(width), place.random(3, width)
        first = reference.rms_norm(more, inner, 1e-5).to(x.dtype)
        total = (x.float() + first.float()).to(x.dtype)
        out = norm.add_rms_norm(x, more, weight, 1e-5, inner)
        place.close(more, total)
        place.close(out, reference.rms_norm(total, weight, 1e-5), 2.0)
    with pytest.raises(ValueError, match="x must be contiguous"):
        norm.rms_norm(place.random(3, 8)[:, :4], place.random(4), 1e-5)


def gates(place: Place) -> None:
    for activation in norm.ACTIVATIONS:
        for width in (1, 37, 1500):
            x = place.random(3, 2 * width + 1)[:, 1:] * 3
            place.close(norm.gate(x, activation), reference.gate(x, activation))
    with pytest.raises(ValueError, match="activation is 'tanh'"):
        norm.gate(place.random(3, 4), "tanh")


def routes(place: Place) -> None:
    """Equal logits: the lowest expert first."""
    for experts, top_k in ((1, 1), (6, 3), (8, 2), (60, 4)):
        logits = place.random(5, experts, dtype=torch.float32)
        logits[0] = 1.5
        for renormalise in (True, False):
            weights, chosen = moe.route(logits, top_k, renormalise)
            share, wanted = reference.route(logits, top_k, renormalise)
            assert torch.equal(chosen, wanted)
            assert (weights - share).abs().max() < 1e-6


def groups(place: Place) -> None:
    """Every pair once, in order, in a block of its expert."""
    for experts, pairs, block in ((1, 1, 16), (5, 26, 16), (8, 300, 64), (60, 40, 16)):
        chosen = place.ints([place.pick(0, experts - 1) for _ in range(pairs)])
        if experts == 5:
            chosen[chosen == 3] = 4
        order, owners, size = moe.group_tokens(chosen.view(-1, 1), experts, block)
        found: dict[int, list[int]] = {e: [] for e in range(experts)}
        for at, owner in enumerate(owners.tolist()):
            if owner >= 0:
                run = order[at * size : (at + 1) * size].tolist()
                found[owner] += [pair for pair in run if pair < pairs]
        wanted: dict[int, list[int]] = {e: [] for e in range(experts)}
        for pair, e in enumerate(chosen.tolist()):
            wanted[e].append(pair)
        assert found == wanted
        used = [owner for owner in owners.tolist() if owner >= 0]
        assert used == sorted(used)


def mixture(place: Place) -> None:
    for tokens, experts, width, inner, block in (
        (9, 4, 40, 24, 0), (1, 8, 64, 32, 16), (3, 2, 24, 136, 64), (20, 3, 40, 48, 0),
    ):  # fmt: skip
        if place.large:
            tokens, width, inner = tokens * 40, width * 8, inner * 8
        x = place.random(tokens, width)
        gate_up = place.random(experts, 2 * inner, width) * width**-0.5
        down = place.random(experts, width, inner) * inner**-0.5
        weights, chosen = chosen_for(place, tokens, experts)
        out = moe.fused_moe(x, gate_up, down, weights, chosen, "silu", block)
        truth = reference.fused_moe(x, gate_up, down, weights, chosen, "silu")
        place.close(out, truth, 2.0)
        biases: dict[str, Any] = {
            "gate_up_bias": place.random(experts, 2 * inner) * 3,
            "down_bias": place.random(experts, width),
        }
        layer = (x, gate_up, down, weights, chosen, "clamped_swiglu")
        truth = reference.fused_moe(*layer, **biases)
        place.close(moe.fused_moe(*layer, **biases), truth, 2.0)
    with pytest.raises(ValueError, match="gate_up has shape"):
        moe.fused_moe(x, gate_up[:, :-1], down, weights, chosen)


def chosen_for(place: Place, tokens: int, experts: int) -> tuple[Tensor, Tensor]:
    weights, chosen = reference.route(place.random(tokens, experts, dtype=torch.float32), 2)
    return weights.float(), chosen


def experts(place: Place) -> None:
    """The layer by fused products equals the layer expert by expert."""
    rule = Routing(6, 2, scores="sigmoid", renormalise=True, groups=3, kept=2)
    shape = ExpertsShape(
        24, 40, rule, act="clamped_swiglu", bias=True, router_bias=True, choice_bias=True,
        shared=0, names=ExpertNames(fused=True),
    )  # fmt: skip
    layer = Experts(shape, weight.Place(torch.device(place.device), place.dtype))
    for slot in layer.slots("").values():
        slot.target.copy_(place.random(*slot.target.shape) * 0.3)
    x = place.random(9, 24)
    outputs = []
    for layer.grouped in (False, True):
        outputs.append(mixture_of(layer, x, TorchOperations(TORCH).gate))
    place.close(outputs[1], outputs[0], 4.0)


CASES = (
    written, written_float8, rotated, rotated_float8, norms, gates, routes, groups, mixture,
    experts,
)  # fmt: skip
