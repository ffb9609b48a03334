"""Layers: times of the kernels between a model's products, and of its experts, against eager
torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmark.gpu.bench import Bench, share
from benchmark.gpu.records import Value
from benchmark.gpu.shapes import SHAPES, TINY, TINY_MOE, ModelShape
from benchmark.gpu.timing import Timing, Work, copies, timed

TOKENS = (1, 32, 256, 4096)
EPS = 1e-5


def missing(bench: Bench) -> bool:
    """Whether the kernels cannot be imported, which a remark says."""
    lacking = [name for name in ("triton", "sgl_kernel") if find_spec(name) is None]
    if lacking:
        bench.remark(f"left out: {', '.join(lacking)} not installed")
    return bool(lacking)


def layers(bench: Bench) -> None:
    """Norms, gates, and rotation with the append of keys and values, at a model's sizes."""
    if missing(bench):
        return
    for shape in (TINY,) if bench.tiny else SHAPES[:2]:
        for tokens in (3,) if bench.tiny else TOKENS:
            for name, measure in LAYERS.items():
                label = f"{shape.name} {name} x {tokens}"
                if not bench.enough(2, f"{label} and what follows"):
                    return
                if not bench.first(label):
                    continue
                try:
                    ours, eager, moved = measure(bench, shape, tokens)
                except Exception as error:  # a kernel that breaks is a result
                    bench.failed(label, error)
                    continue
                _row(bench, "layers", f"{shape.name} {name}", tokens, ours, eager, moved)


def _row(
    bench: Bench, table: str, name: str, tokens: int, ours: Timing, eager: Timing | None,
    moved: float, operations: float = 0.0,
) -> None:  # fmt: skip
    bound = bench.bound(moved, operations)
    row: dict[str, Value] = {
        "kernel": name, "tokens": tokens, "us": ours.seconds * 1e6, "bound us": bound * 1e6 or None,
        "of bound": share(bound, ours.seconds), "launch us": ours.host * 1e6,
        "torch us": eager.seconds * 1e6 if eager else None,
        "torch launch us": eager.host * 1e6 if eager else None, "how": ours.how,
    }  # fmt: skip
    bench.row(table, **row)


Measured = tuple[Timing, Timing, float]  # ours, torch's, bytes moved at least


def _sets(bench: Bench, make: Callable[[], tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
    """Copies of a kernel's tensors that together exceed the cache."""
    first = make()
    size = sum(tensor.nbytes for tensor in first)
    count = 1 if bench.tiny else copies(size)
    return [first, *(make() for _ in range(count - 1))]


def _both(
    bench: Bench, ours: Callable[..., Any], eager: Callable[..., Any],
    sets: Sequence[tuple[Tensor, ...]],
) -> tuple[Timing, Timing]:  # fmt: skip
    def works(call: Callable[..., Any]) -> list[Work]:
        return [partial(call, *tensors) for tensors in sets]

    return timed(bench, works(ours), 0.1), timed(bench, works(eager), 0.1)


def _norm(bench: Bench, shape: ModelShape, tokens: int) -> Measured:
    from sgl_kernel.triton import norm

    weight = bench.random(shape.hidden)

    def eager(x: Tensor, residual: Tensor) -> Tensor:
        residual += x
        return F.rms_norm(residual, (shape.hidden,), weight, EPS)

    sets = _sets(bench, lambda: (bench.random(tokens, shape.hidden, scale=0.01),
                                 bench.random(tokens, shape.hidden)))  # fmt: skip
    both = _both(bench, lambda x, r: norm.add_rms_norm(x, r, weight, EPS), eager, sets)
    return *both, 4.0 * sets[0][0].nbytes


def _gate(bench: Bench, shape: ModelShape, tokens: int) -> Measured:
    from sgl_kernel.triton import norm

    def eager(x: Tensor) -> Tensor:
        gates, up = x.chunk(2, -1)
        return F.silu(gates).mul_(up)

    sets = _sets(bench, lambda: (bench.random(tokens, 2 * shape.inner),))
    both = _both(bench, lambda x: norm.gate(x, "silu"), eager, sets)
    return *both, 1.5 * sets[0][0].nbytes


def _rotate(bench: Bench, shape: ModelShape, tokens: int) -> Measured:
    from sgl_kernel.triton import append

    heads, kv_heads, dim = shape.heads, shape.kv_heads, shape.head_dim
    angles = bench.random(max(tokens, 16), 2, dim)
    positions = torch.arange(tokens, dtype=torch.int32, device=bench.device)
    slots = torch.randperm(tokens, device=bench.device).to(torch.int32)
    far = slots.long()
    width = (heads + 2 * kv_heads) * dim

    def ours(qkv: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        made: Tensor = append.rotate_append(
            qkv, angles, positions, keys, values, slots, heads=heads
        )
        return made

    def eager(qkv: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        both, v = qkv.view(tokens, -1, dim).split([heads + kv_heads, kv_heads], 1)
        cos, sin = angles.index_select(0, positions).unsqueeze(2).unbind(1)
        turned = (both * cos).addcmul_(both.roll(dim // 2, -1), sin)
        keys.index_copy_(0, far, turned[:, heads:])
        values.index_copy_(0, far, v)
        queries: Tensor = turned[:, :heads]
        return queries

    def made() -> tuple[Tensor, ...]:
        pool = (bench.random(tokens, kv_heads, dim) for _ in "kv")
        return bench.random(tokens, width), *pool

    sets = _sets(bench, made)
    return *_both(bench, ours, eager, sets), 2.0 * sets[0][0].nbytes


LAYERS: dict[str, Callable[[Bench, ModelShape, int], Measured]] = {
    "add and norm": _norm, "gate": _gate, "rotate and append": _rotate,
}  # fmt: skip


def experts(bench: Bench) -> None:
    """Routing and experts of one layer; torch computes expert by expert."""
    if missing(bench):
        return
    from sgl_kernel.triton import moe

    shape = TINY_MOE if bench.tiny else SHAPES[-1]
    count, chosen = shape.experts
    gate_up = bench.random(count, 2 * shape.inner, shape.hidden, scale=shape.hidden**-0.5)
    down = bench.random(count, shape.hidden, shape.inner, scale=shape.inner**-0.5)
    for tokens in (3,) if bench.tiny else (1, 8, 32, 256, 4096):
        label = f"{shape.name} experts x {tokens}"
        if not bench.enough(4, f"{label} and what follows"):
            return
        if not bench.first(label):
            continue
        x = bench.random(tokens, shape.hidden)
        scores = torch.randn(tokens, count, device=bench.device)
        try:
            routing = timed(bench, [partial(moe.route, scores, chosen)], 0.1)
            weights, ids = moe.route(scores, chosen)
            fused = timed(bench, [partial(moe.fused_moe, x, gate_up, down, weights, ids)], 0.3)
            # Reads the chosen ids back, so that it cannot be captured and launches what it needs.
            eager = timed(bench, [partial(_one_by_one, x, gate_up, down, weights, ids)], 0.3)
        except Exception as error:
            bench.failed(label, error)
            continue
        read = len(ids.unique())
        parameters = 3 * shape.inner * shape.hidden
        moved = bench.dtype.itemsize * (read * parameters + 2.0 * tokens * shape.hidden)
        operations = 2.0 * tokens * chosen * parameters
        _row(bench, "experts", "route", tokens, routing, None, scores.nbytes)
        _row(bench, "experts", f"{read} experts", tokens, fused, eager, moved, operations)


def _one_by_one(x: Tensor, gate_up: Tensor, down: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
    y = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    for e in ids.unique().tolist():
        token, choice = (ids == e).nonzero(as_tuple=True)
        gates, up = F.linear(x[token], gate_up[e]).chunk(2, -1)
        part = F.linear(F.silu(gates) * up, down[e]).float()
        y.index_add_(0, token, part * weights[token, choice].unsqueeze(1))
    return y
