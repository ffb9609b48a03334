"""New keys and values: rotated, optionally normed, written to their slots."""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from sgl_kernel.triton import checks
from sgl_kernel.triton import layer_kernels as kernels


def append(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """keys[slots[t]] = k[t], values[slots[t]] = v[t].

    k, v: [T, kv_heads, head_dim], head_dim contiguous. keys, values: [slots, kv_heads, head_dim].
    slots: int32 or int64 [T]; negative: not written (padding of a captured graph). Two tokens of
    one slot: undefined which stays. Values are cast to the pools' dtype. Raises ValueError.
    """
    heads, dim = k.shape[1:]
    checks.shape("k", k, None, None, None)
    checks.shape("v", v, *k.shape)
    checks.same_device(k, v=v)
    _pools(k, heads, dim, keys, values, slots)
    if not k.shape[0]:
        return
    kernels.append[(k.shape[0],)](
        k, v, keys, values, slots, k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        keys.stride(0), keys.stride(1), HEADS=heads, DIM=dim,
        BLOCK_H=triton.next_power_of_2(heads), BLOCK_D=triton.next_power_of_2(dim), num_warps=4,
    )  # fmt: skip


def rotate_append(
    qkv: Tensor, angles: Tensor, positions: Tensor, keys: Tensor, values: Tensor, slots: Tensor, *,
    heads: int, q_norm: Tensor | None = None, k_norm: Tensor | None = None, eps: float = 1e-6,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """The rest of a layer before attention, in one launch: RMSNorm of queries and keys per head
    (both or neither weight given), rotary, and the append of keys and values.

    qkv: [T, (heads + 2 * kv_heads) * head_dim], the fused projection's output. angles:
    [length, 2, turned] or [length, 2, 1, turned], ``layers.rotary.Rotary.table``: cosines, and
    sines whose first half is negated; dimensions of a head from ``turned`` on stay as they are.
    positions: int32 [T], below length. keys, values, slots: as for ``append``. q_norm, k_norm:
    [head_dim].
    Returns the rotated queries [T, heads, head_dim], in qkv's dtype. float32 inside, rounded to
    qkv's dtype between norm and rotation as where they are separate. Raises ValueError.
    """
    kv, dim = keys.shape[1:]
    checks.shape("qkv", qkv, None, (heads + 2 * kv) * dim)
    checks.dtype("qkv", qkv, *checks.FLOATS)
    _pools(qkv, kv, dim, keys, values, slots)
    checks.integers(qkv.shape[0], positions=positions)
    if angles.ndim == 4 and angles.shape[2] == 1:
        angles = angles.squeeze(2)
    checks.shape("angles", angles, None, 2, None)
    turned = angles.shape[2]
    if not angles.is_contiguous() or turned % 2 or not 2 <= turned <= dim:
        checks.fail(
            f"angles are of {turned} dimensions; they must be contiguous, and of an even number "
            f"up to head_dim ({dim})"
        )
    checks.same_device(qkv, positions=positions, angles=angles, q_norm=q_norm, k_norm=k_norm)
    if (q_norm is None) != (k_norm is None):
        checks.fail("q_norm and k_norm go together: give both or neither")
    if q_norm is not None and k_norm is not None:
        checks.shape("q_norm", q_norm, dim)
        checks.shape("k_norm", k_norm, dim)
    out = checks.output(out, qkv, qkv.shape[0], heads, dim)
    if qkv.shape[0]:
        kernels.rotate_append[(qkv.shape[0], heads + 2 * kv)](
            qkv, angles, positions, slots, q_norm, k_norm, out, keys, values, eps, qkv.stride(0),
            out.stride(0), out.stride(1), keys.stride(0), keys.stride(1), QUERIES=heads, KV=kv,
            DIM=dim, TURNED=turned, BLOCK=triton.next_power_of_2(turned // 2),
            REST=triton.next_power_of_2(max(1, dim - turned)), NORM=q_norm is not None,
            num_warps=1,
        )  # fmt: skip
    return out


def _pools(x: Tensor, heads: int, dim: int, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    checks.shape("keys", keys, None, heads, dim)
    checks.shape("values", values, *keys.shape)
    checks.shape("slots", slots, x.shape[0])
    checks.dtype("slots", slots, torch.int32, torch.int64)
    checks.dtype("values", values, keys.dtype)
    checks.same_device(x, keys=keys, values=values, slots=slots)
    if keys.stride() != values.stride():
        checks.fail(f"keys have strides {keys.stride()}, values {values.stride()}; give them one")
