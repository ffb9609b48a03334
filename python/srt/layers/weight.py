"""``Place``: device, dtype, ranks of a layer's weights. ``Slot``: target of a checkpoint tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch
import torch.nn.functional as F
from sglang.srt.layers.operations import TORCH, Operations
from sglang.srt.layers.quantised import PackedForm, Quantised
from sglang.srt.parallel.groups import Group
from torch import Tensor

if TYPE_CHECKING:
    from sgl_kernel.lora import Adapted
    from sgl_kernel.packed import Arena, Packed
    from sglang.srt.layers.float8_product import Float8Matrix
    from sglang.srt.layers.lora import Use

Kind: TypeAlias = Literal["matrix", "bias", "gain"]


@dataclass(frozen=True)
class Place:
    """Device, dtypes and rank group that a model is built for.

    Attributes:
        dtype: of its weights.
        activations: dtype of the hidden states, the weights' own where None. With native kernels
            they are float32 whatever the weights are.
        operations: what its layers compute between their products.
        matrices: where the matrices of linear layers are made, ``device`` where None. They are
            moved as they are loaded.
        disabled: names of fused kernels to do without (``--disable-fused-kernels``).
    """

    device: torch.device
    dtype: torch.dtype
    group: Group = field(default_factory=Group)
    activations: torch.dtype | None = None
    operations: Operations = TORCH
    disabled: tuple[str, ...] = ()
    matrices: torch.device | None = None

    @property
    def states(self) -> torch.dtype:
        """The dtype of hidden states."""
        return self.activations or self.dtype

    def empty(self, *shape: int) -> Tensor:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def matrix(self, outputs: int, inputs: int) -> Tensor:
        """The weight of a linear layer."""
        device = self.device if self.matrices is None else self.matrices
        return torch.empty(outputs, inputs, dtype=self.dtype, device=device)


@dataclass(frozen=True)
class Slot:
    """One tensor of the checkpoint and the part of a layer's weight that it fills.

    Attributes:
        target: view of the layer's weight; written by ``load`` and ``randomise``.
        shape: the whole checkpoint tensor's.
        start: this rank holds ``[start, start + target.shape[dim])`` of dimension ``dim``.
        kind: distribution of dummy values.
        adapt: makes what the layer holds of the checkpoint's tensor, which has ``shape``: another
            order of rows, the transpose, a fused tensor's part. Its result is what ``dim`` and
            ``start`` are about.
        rowwise: ``adapt`` chooses and orders rows alone, of whatever lies in them.
    """

    target: Tensor
    shape: tuple[int, ...]
    dim: int = 0
    start: int = 0
    kind: Kind = "matrix"
    adapt: Callable[[Tensor], Tensor] | None = None
    rowwise: bool = False

    def load(self, source: Tensor) -> None:
        """Copy this rank's part of ``source``, which has ``shape``, casting the dtype."""
        if self.adapt is not None:
            source = self.adapt(source)
        part = source.narrow(self.dim, self.start, self.target.shape[self.dim])
        self.target.copy_(part)

    def randomise(self, generator: torch.Generator) -> None:
        """Normal values: matrices keep the variance of their input (1 / fan-in), gains are near 1,
        biases small. The whole tensor is sampled, so that the parts of all ranks agree."""
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
    """A layer with a matrix, which native products may read in a layout of their own.

    Attributes:
        weight: [outputs, inputs]; empty once it is packed.
        bias: [outputs], or None.
        packed: in its place, on a CPU with native kernels.
        float8: in its place, where products are computed in float8.
        paired: the rows are a gate's and those of what it gates.
        exact: never rounded; packed as float32.
        inside: its products are parts of another operation, which knows no adapters.
        plain: not quantised on load; packed as it is.
        site: number by which adapters know the layer's product; -1: it can have none.
        threads: that compute native products.
        operations: of the gate of a paired weight that is not packed.
    """

    weight: Tensor
    bias: Tensor | None = None
    packed: Packed | None = None
    float8: Float8Matrix | None = None
    paired: bool = False
    exact: bool = False
    inside: bool = False
    plain: bool = False
    site: int = -1
    threads: int = 1
    operations: Operations = TORCH

    def product(self, x: Tensor, bias: Tensor | None = None, use: Use | None = None) -> Tensor:
        """``x W^T + bias`` and what the adapters ``use`` add: [T, inputs] -> [T, outputs]. Not for
        a paired weight that is packed (``gated``)."""
        if self.packed is None:
            if self.float8 is None:
                y = F.linear(x, self.weight, bias)
            else:
                y = self.float8.product(x, bias)
            return y if use is None or self.site < 0 else use.add(self.site, x, y)
        from sgl_kernel import packed

        return packed.linear(
            x.contiguous(), self.packed, bias=bias, threads=self.threads,
            adapted=self._adapted(use),
        )  # fmt: skip

    def gated(self, x: Tensor, act: str, use: Use | None = None) -> Tensor:
        """``act(gate) * up`` of a paired weight, [T, inputs] -> [T, outputs / 2]."""
        if self.packed is None:
            return self.operations.gate(self.product(x, self.bias, use), act)
        from sgl_kernel import packed

        return packed.linear(
            x.contiguous(), self.packed, bias=self.bias, act=act, threads=self.threads,
            adapted=self._adapted(use),
        )  # fmt: skip

    def _adapted(self, use: Use | None) -> tuple[Adapted, int] | None:
        return None if use is None or self.site < 0 else (use.native, self.site)

    def pack(self, format: str, threads: int, arena: Arena) -> None:
        """Move the weight into a native layout, quantising it if ``format`` says so."""
        from sgl_kernel.packed import pack

        self.packed = pack(self.weight, format, paired=self.paired, threads=threads, arena=arena)
        self.weight, self.threads = self.weight.new_empty(0), threads

    def pack_integers(self, form: PackedForm, q: Quantised, threads: int, arena: Arena) -> None:
        """The same of a weight that is quantised already, and not in ``weight``."""
        from sgl_kernel.packed import pack_integers

        self.packed = pack_integers(
            q.values, form.scales, form.lows, form.format, paired=self.paired, group=form.group,
            order=q.order, threads=threads, arena=arena,
        )  # fmt: skip
        self.weight, self.threads = self.weight.new_empty(0), threads
