"""Packed: a weight matrix in the layout that the products of this machine read, and the product.

| format | weights | activations |
|---|---|---|
| f32 | float32 | float32 |
| bf16 | bfloat16 | rounded to bfloat16, sums in float32 |
| w8a8 | int8, one scale a row (symmetric) | int8, one scale a token, found as they come |
| w8 | int8, one scale a row | bfloat16 |
| w4 | 4 bits, one scale for ``group`` inputs | bfloat16 |
| w4z, w8z | 4 or 8 bits quantised elsewhere; scales float16, lows multiples of them | bfloat16 |
| w4m, w8m | the same; scales and lows float32 | bfloat16 |

In the last two a weight is ``scale * q + low``, both of ``group`` inputs (``pack_integers``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sgl_kernel.native import need

if TYPE_CHECKING:
    from sgl_kernel.lora import Adapted

FORMATS = ("f32", "bf16", "w8a8", "w8", "w4")
AFFINE = ("w4z", "w4m", "w8z", "w8m")  # by pack_integers alone
CODES = {name: code for code, name in enumerate(FORMATS + AFFINE)}
ACTIVATIONS = {
    "silu": 0, "swish": 0, "gelu": 1, "gelu_new": 2, "gelu_pytorch_tanh": 2, "gelu_fast": 2,
    "relu": 3,
    "clamped_swiglu": 4,  # for pairs only
}  # fmt: skip
ALIGN = 64  # bytes, of a packed matrix
GROUP, GROUPS = 64, (32, 64, 128)  # inputs that share a scale in w4
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.float8_e4m3fn: 3}


@dataclass(frozen=True)
class Packed:
    """W [n, k]. ``paired``: the rows of a gate, then those of what it gates (see ``linear``).
    ``order`` (int32 [k]): column j holds input ``order[j]``."""

    format: str
    n: int
    k: int
    group: int
    paired: bool
    data: Tensor  # uint8
    order: Tensor | None = None

    @property
    def fields(self) -> tuple[int, int, int, int, bool, int]:
        """Arguments by which the native functions take a matrix."""
        code = CODES[self.format]
        return code, self.n, self.k, self.group, self.paired, self.data.data_ptr()

    @property
    def outputs(self) -> int:
        return self.n // 2 if self.paired else self.n

    def rows(self, ids: Tensor, threads: int = 1) -> Tensor:
        """Rows ``ids`` (int32 [count]) as float32 [count, k]: an embedding lookup."""
        ids = ids.to(torch.int32).contiguous()
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.n:
            raise ValueError(f"row ids must lie in [0, {self.n}).")
        out = torch.empty(len(ids), self.k)
        need().unpack(threads, *self.fields, ids.data_ptr(), len(ids), out.data_ptr())
        if self.order is not None:
            out = torch.empty_like(out).index_copy_(1, self.order.long(), out)
        return out


class Arena:
    """Memory for many matrices in one piece, which the system can give in huge pages: weights are
    read from end to end, and a page walk for every 4 KiB costs up to half of the bandwidth."""

    def __init__(self, size: int) -> None:
        self._memory = torch.empty(size, dtype=torch.uint8)
        self._used = 0
        ask_huge_pages(self._memory)

    def take(self, size: int) -> Tensor:
        """uint8 [size], aligned to 64 bytes; of its own where the arena is used up."""
        begin = self._used + -(self._memory.data_ptr() + self._used) % ALIGN
        if begin + size > len(self._memory):
            return torch.empty(size, dtype=torch.uint8)
        self._used = begin + size
        return self._memory[begin : self._used]


def ask_huge_pages(memory: Tensor) -> None:
    """A hint, to be given before anything is written; without effect where there are none."""
    need().ask_huge_pages(memory.data_ptr(), memory.numel() * memory.element_size())


def packed_bytes(n: int, k: int, format: str, group: int = GROUP) -> int:
    """Size of a packed matrix [n, k], and what it may take to align it."""
    return int(need().packed_bytes(CODES[format], n, k, group)) + ALIGN


def pack(
    weight: Tensor,
    format: str,
    *,
    paired: bool = False,
    group: int = GROUP,
    threads: int = 1,
    arena: Arena | None = None,
) -> Packed:
    """weight: [n, k] float32 or bfloat16 on the CPU, rows contiguous. A copy; quantised here.

    Raises ValueError for a format, type or shape that cannot be packed.
    """
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; use one of {', '.join(FORMATS)}.")
    if weight.dtype not in (torch.float32, torch.bfloat16) or weight.device.type != "cpu":
        raise ValueError(
            f"a weight of {weight.dtype} on {weight.device} cannot be packed; give float32 or "
            "bfloat16 on the CPU."
        )
    if format == "w4" and group not in GROUPS:
        raise ValueError(f"group is {group}; w4 has scales for 32, 64 or 128 inputs.")
    n, k = weight.shape
    if paired and n % 2:
        raise ValueError(f"a paired weight has as many gates as inputs; {n} rows are odd.")
    if weight.stride(1) != 1:
        weight = weight.contiguous()
    code, native = FORMATS.index(format), need()
    size = native.packed_bytes(code, n, k, group)
    data = torch.empty(size, dtype=torch.uint8) if arena is None else arena.take(size)
    native.pack(
        threads, code, n, k, group, paired, weight.data_ptr(), TYPES[weight.dtype],
        weight.stride(0), data.data_ptr(),
    )  # fmt: skip
    return Packed(format, n, k, group, paired, data)


def pack_integers(
    values: Tensor,
    scales: Tensor,
    lows: Tensor | None,
    format: str,
    *,
    paired: bool = False,
    group: int = GROUP,
    order: Tensor | None = None,
    threads: int = 1,
    arena: Arena | None = None,
) -> Packed:
    """Weights that are quantised already; nothing is rounded.

    values: int8 [n, k], -8..7 for 4 bits. scales, lows: float32 [n, groups], a group for ``group``
    inputs; of z formats scales are float16 numbers and lows integers that multiply them; w8 and
    w8a8 have one scale a row and no lows. order: as ``Packed``'s. Raises ValueError.
    """
    n, k = values.shape
    rowwise = format in ("w8", "w8a8")
    if not rowwise and (format not in AFFINE or group not in GROUPS):
        raise ValueError(f"integers cannot be packed as {format!r} in groups of {group}.")
    groups = 1 if rowwise else -(-k // group)
    tensors = [scales] if lows is None else [scales, lows]
    if values.dtype != torch.int8 or not n or not k or (paired and n % 2):
        raise ValueError(f"values are {values.dtype} {tuple(values.shape)}; int8 is needed.")
    if any(t.shape != (n, groups) for t in tensors) or (rowwise and lows is not None):
        raise ValueError(f"scales are {tuple(scales.shape)}; [{n}, {groups}] are needed.")
    values, tensors = values.contiguous(), [t.float().contiguous() for t in tensors]
    if order is not None:
        order = order.to(torch.int32).contiguous()
        if order.shape != (k,) or not order.sort().values.equal(torch.arange(k).int()):
            raise ValueError(f"an order of {k} inputs is needed.")
    code, native = CODES[format], need()
    size = native.packed_bytes(code, n, k, group)
    data = torch.empty(size, dtype=torch.uint8) if arena is None else arena.take(size)
    native.pack_integers(
        threads, code, n, k, group, paired, values.data_ptr(), k,
        *(address(t) for t in (*tensors, None)[:2]), data.data_ptr(),
    )  # fmt: skip
    return Packed(format, n, k, group, paired, data, order)


class Parts:
    """Matrices of one shape and format, each for its own part of the input: heads."""

    def __init__(self, weights: Sequence[Packed]) -> None:
        """Raises ValueError where they differ."""
        kinds = {(w.format, w.n, w.k, w.group, w.paired, w.order is None) for w in weights}
        if len(kinds) != 1 or weights[0].paired or weights[0].order is not None:
            raise ValueError(f"parts are {kinds}; matrices of one shape and format are needed.")
        self.weights = tuple(weights)
        self._table = np.array([w.fields for w in weights], dtype=np.int64)

    def __call__(self, x: Tensor, threads: int = 1) -> Tensor:
        """float32 [m, parts, k] -> [m, parts, n]; a row's bits do not depend on the others. Raises
        ValueError, MemoryError."""
        w, count, m = self.weights[0], len(self.weights), x.shape[0]
        if x.dtype != torch.float32 or x.shape != (m, count, w.k) or (m and x.stride(2) != 1):
            raise ValueError(f"x is {x.dtype} {tuple(x.shape)}; float32 [m, {count}, {w.k}].")
        y = torch.empty(m, count, w.n)
        table = int(self._table.__array_interface__["data"][0])
        if not need().linear_each(
            threads, table, count, x.data_ptr(), x.stride(0), x.stride(1), m, y.data_ptr(),
            y.stride(0), y.stride(1),
        ):  # fmt: skip
            raise MemoryError(f"no memory for products of {m} rows.")
        return y


def linear(
    x: Tensor,
    weight: Packed,
    *,
    bias: Tensor | None = None,
    gain: Tensor | None = None,
    eps: float = 1e-6,
    act: str = "silu",
    out: Tensor | None = None,
    add: bool = False,
    threads: int = 1,
    adapted: tuple[Adapted, int] | None = None,
) -> Tensor:
    """``y = norm(x) W^T + bias``, all float32; x [m, k], y [m, outputs].

    ``gain`` [k]: x is RMS-normed first. A paired weight gives ``act(gate) * up``. ``add``: added to
    ``out``, which must be given then. ``adapted``: which rows of x have adapters, and what these
    call the product; their share is added before the bias. Raises ValueError for shapes that do
    not fit, MemoryError.
    """
    m = x.shape[0]
    if x.dtype != torch.float32 or x.shape != (m, weight.k) or (m and x.stride(1) != 1):
        raise ValueError(f"x is {x.dtype} {tuple(x.shape)}; float32 [m, {weight.k}] is needed.")
    if out is None:
        if add:
            raise ValueError("add=True adds to out, which is not given.")
        out = torch.empty(m, weight.outputs)
    if out.dtype != torch.float32 or out.shape != (m, weight.outputs) or (m and out.stride(1) != 1):
        raise ValueError(f"out is {out.dtype} {tuple(out.shape)}; float32 [{m}, {weight.outputs}].")
    bias, gain = _vector(bias, weight.n, "bias"), _vector(gain, weight.k, "gain")
    if weight.order is not None:  # a norm does not mind
        x = x.index_select(1, weight.order)
        gain = None if gain is None else gain.index_select(0, weight.order)
    values = (
        threads, *weight.fields, address(gain), eps, x.data_ptr(), x.stride(0), m, address(bias),
        add, ACTIVATIONS[act], out.data_ptr(), out.stride(0),
    )  # fmt: skip
    if adapted is None:
        good = need().linear(*values)
    else:
        good = need().linear_adapted(*values, adapted[0].address, adapted[1])
    if not good:
        raise MemoryError(f"no memory for a product of {m} rows.")
    return out


def _vector(x: Tensor | None, size: int, name: str) -> Tensor | None:
    if x is None:
        return None
    if x.shape != (size,):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; [{size}] is needed.")
    return x.float().contiguous()


def address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()
