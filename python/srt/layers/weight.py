"""``Place``: device, dtype, ranks of weights. ``Slot``: the destination of a checkpoint tensor.
``Stored``: a layer with a matrix."""

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
    """Device, dtypes and rank group that a model is built for. Weights are tensors.

    Attributes:
        device, dtype: device and dtype of the weights, of torch or NumPy.
        activations: dtype of the hidden states; None: the weights' dtype. With native kernels
            hidden states are always float32.
        operations: operations of the layers between their products.
        matrices: device on which matrices of linear layers are allocated; None: ``device``.
            Loading moves the matrices to ``device``.
        disabled: names of fused kernels that are not used (``--disable-fused-kernels``).
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
        """Dtype of the hidden states."""
        return self.activations or self.dtype

    def empty(self, *shape: int) -> Weight:
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def floats(self, *shape: int) -> Weight:
        """Allocate a float32 weight."""
        return torch.empty(shape, device=self.device)

    def matrix(self, outputs: int, inputs: int) -> Weight:
        """Allocate the weight [outputs, inputs] of a linear layer."""
        device = self.device if self.matrices is None else self.matrices
        return torch.empty(outputs, inputs, dtype=self.dtype, device=device)

    def rounded(self, value: float) -> float:
        """Return ``value`` rounded to the dtype of the hidden states."""
        return float(torch.tensor(value, dtype=self.states))


class HostPlace(Place):
    """A ``Place`` whose weights are NumPy arrays, for native CPU kernels."""

    def empty(self, *shape: int) -> Weight:
        return np.empty(shape, self.dtype)

    def floats(self, *shape: int) -> Weight:
        return np.empty(shape, np.float32)

    def matrix(self, outputs: int, inputs: int) -> Weight:
        return self.empty(outputs, inputs)

    def rounded(self, value: float) -> float:
        return float(np.asarray(value, self.states))


class OutlinePlace(HostPlace):
    """A ``Place`` whose weights have shapes and no memory."""

    def empty(self, *shape: int) -> Weight:
        return outline(shape, self.dtype)

    def floats(self, *shape: int) -> Weight:
        return outline(shape, np.dtype(np.float32))


@dataclass(frozen=True)
class Slot:
    """One tensor of the checkpoint and the part of a layer's weight that it fills.

    Attributes:
        target: view of the layer's weight; written by ``load`` and ``randomise``.
        shape: shape of the whole checkpoint tensor.
        start: this rank holds ``[start, start + target.shape[dim])`` of dimension ``dim``.
        kind: distribution of dummy values.
        adapt: converts the checkpoint tensor to the layer's layout: reorders rows, transposes, or
            takes a part of a fused tensor. ``dim`` and ``start`` refer to the converted tensor.
        rowwise: ``adapt`` only selects and reorders rows, so quantised rows can be adapted too.
    """

    target: Weight
    shape: tuple[int, ...]
    dim: int = 0
    start: int = 0
    kind: Kind = "matrix"
    adapt: Callable[[Array], Array] | None = None
    rowwise: bool = False

    def load(self, source: Array) -> None:
        """Copy this rank's part of ``source``, of shape ``shape``, into the target; cast dtypes."""
        if self.adapt is not None:
            source = self.adapt(source)
        end = self.start + self.target.shape[self.dim]
        part = source[(slice(None),) * self.dim + (slice(self.start, end),)]
        self.put(part)

    def put(self, part: Array) -> None:
        """Overwrite the target with ``part``, of the target's shape."""
        if isinstance(self.target, np.ndarray):
            self.target[...] = part
        else:
            self.target.copy_(tensor(part))

    def randomise(self, generator: np.random.Generator) -> None:
        """Fill the target with normal values: variance 1 / fan-in for matrices; gains near 1, small
        biases. Generates the whole tensor, so that ranks hold parts of the same one."""
        values = generator.standard_normal(self.shape, np.float32)
        if self.kind == "matrix":
            values *= np.float32(self.shape[-1] ** -0.5)
        else:
            values *= np.float32(0.02)
            values += np.float32(1.0 if self.kind == "gain" else 0.0)
        self.load(values)

    @property
    def on_gpu(self) -> bool:
        """True if dummy values are generated on the GPU, which requires that none are reordered."""
        gpu = not isinstance(self.target, np.ndarray) and self.target.is_cuda
        return gpu and self.adapt is None

    def randomise_there(self, seed: int) -> None:
        """Fill the target as ``randomise`` does, with values of the device's generator."""
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
    """A layer with a matrix, which may be packed for native products.

    Attributes:
        weight: [outputs, inputs]; empty if the layer is packed or float8.
        bias: [outputs], or None.
        packed: the packed matrix, on a CPU with native kernels.
        float8: the float8 matrix, if products are computed in float8.
        paired: the rows are those of a gate, then those of up.
        exact: the matrix is never rounded, and packed as float32.
        inside: the product is part of another operation, which supports no adapters.
        plain: the matrix is not quantised at loading, and packed in its dtype.
        site: number of the layer's product in adapters; -1: no adapter changes it.
        threads: number of threads that compute native products.
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
        """Return ``x W^T + bias`` [T, outputs] of x [T, inputs], with the adapters ``use`` applied.
        For a packed, paired weight return ``act(gate) * up`` of it [T, outputs / 2]."""
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
        """Pack the weight in ``format``, which may quantise it, and free the weight."""
        from sgl_kernel.packed import pack

        self.packed = pack(self.weight, format, paired=self.paired, threads=threads, arena=arena)
        self._packed(threads)

    def pack_integers(self, form: PackedForm, q: Quantised, threads: int, arena: Arena) -> None:
        """Pack the quantised matrix ``q`` instead of the weight, and free the weight."""
        from sgl_kernel.packed import pack_integers

        self.packed = pack_integers(
            q.values, form.scales, form.lows, form.format, paired=self.paired, group=form.group,
            order=q.order, threads=threads, arena=arena,
        )  # fmt: skip
        self._packed(threads)

    def _packed(self, threads: int) -> None:
        """Replace the weight by an empty one, which frees its memory."""
        self.threads, whole = threads, self.weight
        bare = isinstance(whole, np.ndarray)
        self.weight = np.empty(0, whole.dtype) if bare else whole.new_empty(0)


class LayerWeights(Protocol):
    """A layer, or a group of layers, with weights from a checkpoint."""

    def stored(self) -> list[Stored]:
        """Return all layers in it that have a matrix."""

    def slots(self, prefix: str) -> Slots:
        """Return the slots of its checkpoint tensors, whose names begin with ``prefix``."""
