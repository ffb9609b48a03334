"""Place: where a layer's weights live; Slot: where one checkpoint tensor goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
from torch import Tensor

from srt.parallel.groups import Group

if TYPE_CHECKING:
    from sgl_kernel.packed import Arena, Packed

Kind: TypeAlias = Literal["matrix", "bias", "gain"]


@dataclass(frozen=True)
class Place:
    """Device, dtype and tensor-parallel group that a model is built for."""

    device: torch.device
    dtype: torch.dtype
    group: Group = field(default_factory=Group)

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)


@dataclass(frozen=True)
class Slot:
    """One tensor of the checkpoint and the part of a layer's weight that it fills.

    Attributes:
        target: view of the layer's weight; written by ``load`` and ``randomise``.
        shape: the whole checkpoint tensor's.
        start: this rank holds ``[start, start + target.shape[dim])`` of dimension ``dim``.
        kind: how dummy values are drawn.
    """

    target: Tensor
    shape: tuple[int, ...]
    dim: int = 0
    start: int = 0
    kind: Kind = "matrix"

    def load(self, source: Tensor) -> None:
        """Copy this rank's part of ``source``, which has ``shape``, casting the dtype."""
        part = source.narrow(self.dim, self.start, self.target.shape[self.dim])
        self.target.copy_(part)

    def randomise(self, generator: torch.Generator) -> None:
        """Normal values: matrices keep the variance of their input (1 / fan-in), gains are near 1,
        biases small. The whole tensor is drawn, so every rank's part agrees with the others'."""
        values = torch.randn(
            self.shape, generator=generator, device=self.target.device, dtype=torch.float32
        )
        if self.kind == "matrix":
            values.mul_(self.shape[-1] ** -0.5)
        else:
            values.mul_(0.02).add_(1.0 if self.kind == "gain" else 0.0)
        self.load(values)


Slots: TypeAlias = dict[str, Slot]


class Stored:
    """A layer whose weight native products may read in a layout of their own.

    Attributes:
        weight: [outputs, inputs]; empty once it is packed.
        bias: [outputs], or None.
        packed: in its place, on a CPU with native kernels.
        paired: the rows are a gate's and those of what it gates.
    """

    weight: Tensor
    bias: Tensor | None = None
    packed: Packed | None = None
    paired: bool = False

    def pack(self, format: str, threads: int, arena: Arena) -> None:
        """Move the weight into a native layout, quantising it if ``format`` says so."""
        from sgl_kernel.packed import pack

        self.packed = pack(self.weight, format, paired=self.paired, threads=threads, arena=arena)
        self.weight = self.weight.new_empty(0)
