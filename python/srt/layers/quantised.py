"""Quantised and Float8: quantised matrices of a checkpoint, as numbers with scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from sglang.srt.numeric.host_arrays import Array, Weight

GROUPS = (128, 64, 32)  # inputs that share a scale in native formats


@dataclass(frozen=True)
class Quantised:
    """W [n, k]: ``W[i, order[j]] = scales[i, g] * (values[i, j] - zeros[i, g]) + lows[i, g]`` with
    ``g = j // group``.

    Attributes:
        bits: bits of a value, 4 or 8.
        values: int8 [n, k]; -8..7 for 4 bits.
        scales: float32 [n, ceil(k / group)].
        zeros: integers of the shape of ``scales``, None: all are 0.
        lows: float32 of the shape of ``scales``, None: all are 0.
        group: number of inputs that share a scale; k for one scale per row.
        order: int64 [k], the input of each column; None: column j is input j.
        int8_activations: the checkpoint was made for activations quantised to int8 at run time.
    """

    bits: int
    values: Array
    scales: Array
    group: int
    zeros: Array | None = None
    lows: Array | None = None
    order: Array | None = None
    int8_activations: bool = False

    def dense(self) -> Array:
        """Return W in float32, exact if the scales were float16 or bfloat16 and lows is None."""
        k = self.values.shape[1]
        out = self.values.astype(np.float32)
        if self.zeros is not None:
            out -= spread(self.zeros, self.group, k)
        out *= spread(self.scales, self.group, k)
        if self.lows is not None:
            out += spread(self.lows, self.group, k)
        if self.order is not None:
            out, columns = np.empty_like(out), out
            out[:, self.order] = columns
        return out

    def rows(self, arrange: Callable[[Array], Array]) -> Quantised:
        """Return the matrix with rows selected or reordered by ``arrange``, from [n, ...]."""
        return replace(
            self, values=arrange(self.values), scales=arrange(self.scales),
            zeros=None if self.zeros is None else arrange(self.zeros),
            lows=None if self.lows is None else arrange(self.lows),
        )  # fmt: skip


@dataclass(frozen=True)
class Float8:
    """W [n, k] of a checkpoint that was made for float8 (e4m3) weights and activations:
    ``W[i, j] = values[i, j] * scales[i, j // group]``.

    Attributes (NumPy arrays in a checkpoint, tensors in a layer):
        values: float8 [n, k].
        scales: float32 [n, ceil(k / group)].
        group: number of inputs that share a scale; k for one scale per row.
    """

    values: Weight
    scales: Weight
    group: int

    def dense(self) -> Array:
        """Return W in float32, exact if the scales were float16 or bfloat16. For arrays only."""
        scales = spread(self.scales, self.group, self.values.shape[1])
        found: Array = np.multiply(self.values.astype(np.float32), scales)
        return found

    def rows(self, arrange: Callable[[Array], Array]) -> Float8:
        """Return the matrix with rows selected or reordered by ``arrange``, from [n, ...]."""
        return replace(self, values=arrange(self.values), scales=arrange(self.scales))


def spread(scales: Array, group: int, k: int) -> Array:
    """Repeat ``scales`` [n, groups] for each of k inputs: [n, k], or [n, 1] for one group."""
    if scales.shape[1] == 1:
        return scales
    return np.repeat(scales, group, axis=1)[:, :k]


def joined(parts: Sequence[Quantised]) -> Quantised | None:
    """Return one matrix with the rows of all parts; None if the parts differ in format."""
    first = parts[0]
    for part in parts[1:]:
        same = (part.bits, part.group, part.int8_activations)
        if same != (first.bits, first.group, first.int8_activations):
            return None
        orders = (part.order, first.order)
        if (part.lows is None) != (first.lows is None) or not _equal(*orders):
            return None
    zeros = None
    if any(part.zeros is not None for part in parts):
        zeros = np.concatenate(
            [np.zeros_like(p.scales) if p.zeros is None else _float(p.zeros) for p in parts]
        )
    lows = [part.lows for part in parts if part.lows is not None]
    return replace(
        first,
        values=np.concatenate([part.values for part in parts]),
        scales=np.concatenate([part.scales for part in parts]),
        zeros=zeros,
        lows=np.concatenate(lows) if lows else None,
    )


def _equal(a: Array | None, b: Array | None) -> bool:
    return a is b or (a is not None and b is not None and np.array_equal(a, b))


def _float(x: Array) -> Array:
    return x.astype(np.float32, copy=False)


class PackedForm(NamedTuple):
    """Format of a quantised matrix for native kernels: arguments of ``packed.pack_integers``."""

    format: str
    group: int
    scales: Array
    lows: Array | None


def native_form(q: Quantised) -> PackedForm | None:
    """Return the smallest format that represents the weights exactly; None if there is none."""
    k = q.values.shape[1]
    if not np.isfinite(q.scales).all():
        return None
    rowwise = q.scales.shape[1] == 1
    if q.bits == 8 and rowwise and q.zeros is None and q.lows is None and q.order is None:
        return PackedForm("w8a8" if q.int8_activations else "w8", GROUPS[0], q.scales, None)
    group = next((g for g in GROUPS if rowwise or q.group % g == 0), 0)
    if not group:
        return None
    count, times = -(-k // group), -(-k // group) if rowwise else q.group // group

    def fine(x: Array) -> Array:
        return np.repeat(_float(x), times, axis=1)[:, :count]

    lows = q.lows
    if lows is None:
        zeros = np.zeros_like(q.scales) if q.zeros is None else _float(q.zeros)
        with np.errstate(over="ignore"):
            half = q.scales.astype(np.float16)
        if np.array_equal(_float(half), q.scales) and (zeros.min() >= -127) and zeros.max() <= 128:
            return PackedForm(f"w{q.bits}z", group, fine(q.scales), fine(-zeros))
        lows = -zeros * q.scales
    elif q.zeros is not None:
        lows = lows - _float(q.zeros) * q.scales
    return PackedForm(f"w{q.bits}m", group, fine(q.scales), fine(lows))
