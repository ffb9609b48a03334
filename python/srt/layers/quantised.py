"""Quantised: a matrix as its checkpoint has quantised it, as integers with scales."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

GROUPS = (128, 64, 32)  # inputs that share a scale in native formats


@dataclass(frozen=True)
class Quantised:
    """W [n, k]: ``W[i, order[j]] = scales[i, g] * (values[i, j] - zeros[i, g]) + lows[i, g]`` with
    ``g = j // group``.

    Attributes:
        bits: 4 or 8, which hold the values.
        values: int8 [n, k]; -8..7 for 4 bits.
        scales: float32 [n, ceil(k / group)].
        zeros: integers of the same shape, None for zeros.
        lows: float32 of the same shape, None for zeros.
        group: inputs that share a scale; k where rows have one.
        order: int64 [k], the input of each column; None: as they come.
        int8_activations: the checkpoint was made for activations of int8, found as they come.
    """

    bits: int
    values: Tensor
    scales: Tensor
    group: int
    zeros: Tensor | None = None
    lows: Tensor | None = None
    order: Tensor | None = None
    int8_activations: bool = False

    def dense(self) -> Tensor:
        """W in float32. With scales of float16 or bfloat16 and no lows nothing is rounded."""
        k = self.values.shape[1]
        out = self.values.float()
        if self.zeros is not None:
            out -= spread(self.zeros, self.group, k)
        out *= spread(self.scales, self.group, k)
        if self.lows is not None:
            out += spread(self.lows, self.group, k)
        if self.order is not None:
            out = torch.empty_like(out).index_copy_(1, self.order, out)
        return out

    def rows(self, arrange: Callable[[Tensor], Tensor]) -> Quantised:
        """The rows that ``arrange`` makes of a tensor [n, ...]."""
        return replace(
            self, values=arrange(self.values), scales=arrange(self.scales),
            zeros=None if self.zeros is None else arrange(self.zeros),
            lows=None if self.lows is None else arrange(self.lows),
        )  # fmt: skip


@dataclass(frozen=True)
class Float8:
    """W [n, k] of a checkpoint that was made for activations in float8 (e4m3) too:
    ``W[i, j] = values[i, j] * scales[i, j // group]``.

    Attributes:
        values: float8 [n, k].
        scales: float32 [n, ceil(k / group)].
        group: inputs that share a scale; k where rows have one.
    """

    values: Tensor
    scales: Tensor
    group: int

    def dense(self) -> Tensor:
        """W in float32. With scales of float16 or bfloat16 nothing is rounded."""
        return self.values.float() * spread(self.scales, self.group, self.values.shape[1])

    def rows(self, arrange: Callable[[Tensor], Tensor]) -> Float8:
        """The rows that ``arrange`` makes of a tensor [n, ...]."""
        values = arrange(self.values.view(torch.uint8)).view(self.values.dtype)
        return replace(self, values=values, scales=arrange(self.scales))


def spread(scales: Tensor, group: int, k: int) -> Tensor:
    """[n, groups] for each of k inputs: [n, k], or [n, 1] where there is one group."""
    if scales.shape[1] == 1:
        return scales
    return scales.repeat_interleave(group, dim=1)[:, :k]


def joined(parts: Sequence[Quantised]) -> Quantised | None:
    """The matrix of all parts' rows; None where they do not share one form."""
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
        zeros = torch.cat(
            [torch.zeros_like(p.scales) if p.zeros is None else p.zeros.float() for p in parts]
        )
    lows = [part.lows for part in parts if part.lows is not None]
    return replace(
        first,
        values=torch.cat([part.values for part in parts]),
        scales=torch.cat([part.scales for part in parts]),
        zeros=zeros,
        lows=torch.cat(lows) if lows else None,
    )


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    return a is b or (a is not None and b is not None and torch.equal(a, b))


class PackedForm(NamedTuple):
    """A quantised matrix as native kernels hold it: arguments of ``packed.pack_integers``."""

    format: str
    group: int
    scales: Tensor
    lows: Tensor | None


def native_form(q: Quantised) -> PackedForm | None:
    """The smallest that holds exactly the same weights; None where none does."""
    k = q.values.shape[1]
    if not torch.isfinite(q.scales).all():
        return None
    rowwise = q.scales.shape[1] == 1
    if q.bits == 8 and rowwise and q.zeros is None and q.lows is None and q.order is None:
        return PackedForm("w8a8" if q.int8_activations else "w8", GROUPS[0], q.scales, None)
    group = next((g for g in GROUPS if rowwise or q.group % g == 0), 0)
    if not group:
        return None
    count, times = -(-k // group), -(-k // group) if rowwise else q.group // group

    def fine(x: Tensor) -> Tensor:
        return x.float().repeat_interleave(times, dim=1)[:, :count]

    lows = q.lows
    if lows is None:
        zeros = torch.zeros_like(q.scales) if q.zeros is None else q.zeros.float()
        half = q.scales.half()
        if torch.equal(half.float(), q.scales) and (zeros.min() >= -127) and zeros.max() <= 128:
            return PackedForm(f"w{q.bits}z", group, fine(q.scales), fine(-zeros))
        lows = -zeros * q.scales
    elif q.zeros is not None:
        lows = lows - q.zeros * q.scales
    return PackedForm(f"w{q.bits}m", group, fine(q.scales), fine(lows))
