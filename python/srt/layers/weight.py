"""``Place``: device, dtype, ranks of a layer's weights. ``Slot``: target of a checkpoint tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
from sglang.srt.layers.operations import TORCH, Operations
from sglang.srt.layers.quantised import PackedForm, Quantised
from sglang.srt.numeric.host_arrays import Array, Weight, outline, tensor
from sglang.srt.numeric.torch_later import F, Tensor, torch
from sglang.srt.parallel.groups import Group

if TYPE_CHECKING:
    from sgl_kernel.packed import Arena, Packed
    from sglang.srt.layers.float8_product import Float8Matrix
    from sglang.srt.layers.lora import Use

Kind: TypeAlias = Literal["matrix", "bias", "gain"]


@dataclass(frozen=True)
class Place:
    """Device, dtypes and rank group that a model is built for, whose weights are tensors.

    Attributes:
        device, dtype: of its weights, as torch has them, or NumPy.
        activations: dtype of the hidden states, the weights' own where None. With native kernels
            they are float32 whatever the weights are.
        operations: what its layers compute between their products.
        matrices: where the matrices of linear layers are made, ``device`` where None. They are
            moved as they are loaded.
        disabled: names of fused kernels to do without (``--disable-fused-kernels``).
    """

    device: Any
    dtype: Any
    group: Group = field(default_factory=Group)
    activations: Any = None
    operations: Operations = TORCH
    disabled: tuple[str, ...] = ()
    matrices: Any = None

    @property
    def states(self) -> Any:
        """The dtype of hidden states."""
        return self.activations or self.dtype

    def empty(self, *shape: int) -> Weight:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def floats(self, *shape: int) -> Weight:
        """The same in float32."""
        return torch.empty(shape, device=self.device)

    def matrix(self, outputs: int, inputs: int) -> Weight:
        """The weight of a linear layer."""
        device = self.device if self.matrices is None else self.matrices
        return torch.empty(outputs, inputs, dtype=self.dtype, device=device)

    def rounded(self, value: float) -> float:
        """The number in the dtype of the states."""
        return float(torch.tensor(value, dtype=self.states))


class HostPlace(Place):
    """Weights that are NumPy's arrays, for native CPU kernels."""

    def empty(self, *shape: int) -> Weight:
        return np.empty(shape, self.dtype)

    def floats(self, *shape: int) -> Weight:
        return np.empty(shape, np.float32)

    def matrix(self, outputs: int, inputs: int) -> Weight:
        return self.empty(outputs, inputs)

    def rounded(self, value: float) -> float:
        return float(np.asarray(value, self.states))


class OutlinePlace(HostPlace):
    """Weights that have shapes and no memory."""

    def empty(self, *shape: int) -> Weight:
        return outline(shape, self.dtype)

    def floats(self, *shape: int) -> Weight:
        return outline(shape, np.dtype(np.float32))


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

    target: Weight
    shape: tuple[int, ...]
    dim: int = 0
    start: int = 0
    kind: Kind = "matrix"
    adapt: Callable[[Array], Array] | None = None
    rowwise: bool = False

    def load(self, source: Array) -> None:
        """Copy this rank's part of ``source``, which has ``shape``, casting the dtype."""
        if self.adapt is not None:
            source = self.adapt(source)
        end = self.start + self.target.shape[self.dim]
        part = source[(slice(None),) * self.dim + (slice(self.start, end),)]
        self.put(part)

    def put(self, part: Array) -> None:
        """Overwrite the target."""
        if isinstance(self.target, np.ndarray):
            self.target[...] = part
        else:
            self.target.copy_(tensor(part))

    def randomise(self, generator: np.random.Generator) -> None:
        """Normal values: matrices keep the variance of their input (1 / fan-in), gains are near 1,
        biases small. The whole tensor is sampled, so that the parts of all ranks agree."""
        values = generator.standard_normal(self.shape, np.float32)
        if self.kind == "matrix":
            values *= np.float32(self.shape[-1] ** -0.5)
        else:
            values *= np.float32(0.02)
            values += np.float32(1.0 if self.kind == "gain" else 0.0)
        self.load(values)

    @property
    def on_gpu(self) -> bool:
        """Whether dummy values are best made on the device: nothing reorders them."""
        gpu = not isinstance(self.target, np.ndarray) and self.target.is_cuda
        return gpu and self.adapt is None

    def randomise_there(self, seed: int) -> None:
        """Normal values as those of ``randomise``, by the device's own generator."""
        device = self.target.device
        generator = torch.Generator(device)
        generator.manual_seed(seed)
        values = torch.randn(self.shape, generator=generator, device=device, dtype=torch.float32)
        if self.kind == "matrix":
            values.mul_(self.shape[-1] ** -0.5)
        else:
            values.mul_(0.02).add_(1.0 if self.kind == "gain" else 0.0)
        size = self.target.shape[self.dim]
        self.target.copy_(values.narrow(self.dim, self.start, size))


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
    """

    weight: Weight
    bias: Weight | None = None
    packed: Packed | None = None
    float8: Float8Matrix | None = None
    paired: bool = False
    exact: bool = False
    inside: bool = False
    plain: bool = False
    site: int = -1
    threads: int = 1

    def product(
        self, x: Tensor, bias: Tensor | None = None, use: Use | None = None, act: str = "silu"
    ) -> Tensor:
        """``x W^T + bias`` and what the adapters ``use`` add: [T, inputs] -> [T, outputs]. Of a
        paired weight that is packed ``act(gate) * up``, half as wide."""
        if self.packed is None:
            if self.float8 is None:
                y = F.linear(x, self.weight, bias)
            else:
                y = self.float8.product(x, bias)
            return y if use is None or self.site < 0 else use.add(self.site, x, y)
        from sgl_kernel import packed

        found: Tensor = packed.linear(
            x.contiguous(), self.packed, bias=bias, act=act, threads=self.threads,
            adapted=None if use is None or self.site < 0 else (use.native, self.site),
        )  # fmt: skip
        return found

    def pack(self, format: str, threads: int, arena: Arena) -> None:
        """Move the weight into a native layout, quantising it if ``format`` says so."""
        from sgl_kernel.packed import pack

        self.packed = pack(self.weight, format, paired=self.paired, threads=threads, arena=arena)
        self._packed(threads)

    def pack_integers(self, form: PackedForm, q: Quantised, threads: int, arena: Arena) -> None:
        """The same of a weight that is quantised already, and not in ``weight``."""
        from sgl_kernel.packed import pack_integers

        self.packed = pack_integers(
            q.values, form.scales, form.lows, form.format, paired=self.paired, group=form.group,
            order=q.order, threads=threads, arena=arena,
        )  # fmt: skip
        self._packed(threads)

    def _packed(self, threads: int) -> None:
        """Let go of the weight's memory."""
        self.threads, whole = threads, self.weight
        bare = isinstance(whole, np.ndarray)
        self.weight = np.empty(0, whole.dtype) if bare else whole.new_empty(0)


class LayerWeights(Protocol):
    """A layer, or several, with the weights that a checkpoint fills."""

    def stored(self) -> list[Stored]:
        """Everything in it with a matrix."""

    def slots(self, prefix: str) -> Slots:
        """Checkpoint tensors of the layer, whose names begin with ``prefix``."""
