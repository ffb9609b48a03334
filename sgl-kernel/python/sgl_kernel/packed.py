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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sgl_kernel.arrays import (
    TYPES,
    AnyArray,
    address,
    contiguous,
    described,
    dtype_name,
    empty,
    floats,
    int32,
    on_cpu,
    stride,
)
from sgl_kernel.fields import Fields, bits
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
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True)
class Packed:
    """A weight matrix W [n, k] in the layout of the kernels.

    ``paired``: the first n / 2 rows are a gate, the others are gated by it (see ``linear``).
    ``order`` (int32 [k]): column j holds input ``order[j]``."""

    format: str
    n: int
    k: int
    group: int
    paired: bool
    data: Bytes
    order: AnyArray | None = None
    native: Fields = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        code, data = CODES[self.format], address(self.data)
        values = (code, self.n, self.k, self.group, self.paired, data)
        object.__setattr__(self, "native", Fields(values, self.data))

    @property
    def outputs(self) -> int:
        return self.n // 2 if self.paired else self.n

    def rows(self, ids: AnyArray, threads: int = 1) -> AnyArray:
        """Rows ``ids`` (int32 [count]) as float32 [count, k]: an embedding lookup."""
        ids = int32(ids)
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.n:
            raise ValueError(f"row ids must lie in [0, {self.n}).")
        out = empty(ids, len(ids), self.k)
        need().unpack(threads, self.native.address, address(ids), len(ids), address(out))
        if self.order is None:
            return out
        ordered = empty(ids, len(ids), self.k)
        ordered[:, self.order] = out
        return ordered


class Arena:
    """Memory for many matrices in one piece, which the system can give in huge pages: weights are
    read from end to end, and a page walk for every 4 KiB costs up to half of the bandwidth."""

    def __init__(self, size: int) -> None:
        self._memory = np.empty(size, dtype=np.uint8)
        self._base, self._used = int(self._memory.__array_interface__["data"][0]), 0
        ask_huge_pages(self._memory)

    def take(self, size: int) -> Bytes:
        """uint8 [size], aligned to 64 bytes; a new allocation where the arena is used up."""
        begin = self._used + -(self._base + self._used) % ALIGN
        if begin + size > len(self._memory):
            return np.empty(size, dtype=np.uint8)
        self._used = begin + size
        return self._memory[begin : self._used]


def ask_huge_pages(memory: AnyArray) -> None:
    """Ask the system for huge pages (madvise), before anything is written into ``memory``. A
    system without them ignores it."""
    need().ask_huge_pages(address(memory), memory.nbytes)


def packed_bytes(n: int, k: int, format: str, group: int = GROUP) -> int:
    """Bytes of a packed matrix [n, k], with those for its alignment."""
    return int(need().packed_bytes(CODES[format], n, k, group)) + ALIGN


def pack(
    weight: AnyArray,
    format: str,
    *,
    paired: bool = False,
    group: int = GROUP,
    threads: int = 1,
    arena: Arena | None = None,
) -> Packed:
    """Copy a weight, float32 or bfloat16 [n, k] on the CPU with contiguous rows, and quantise it.

    Raises ValueError for a format, type or shape that cannot be packed.
    """
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; use one of {', '.join(FORMATS)}.")
    if dtype_name(weight) not in ("float32", "bfloat16") or not on_cpu(weight):
        raise ValueError(
            f"a weight of {weight.dtype} on {getattr(weight, 'device', 'cpu')} cannot be packed; "
            "give float32 or bfloat16 on the CPU."
        )
    if format == "w4" and group not in GROUPS:
        raise ValueError(f"group is {group}; w4 has scales for 32, 64 or 128 inputs.")
    n, k = weight.shape
    if paired and n % 2:
        raise ValueError(f"a paired weight has as many gates as inputs; {n} rows are odd.")
    if stride(weight, 1) != 1:
        weight = contiguous(weight)
    packed = Packed(format, n, k, group, paired, _room(n, k, format, group, arena))
    need().pack(
        threads, packed.native.address, address(weight), TYPES[dtype_name(weight)], stride(weight)
    )
    return packed


def pack_integers(
    values: AnyArray,
    scales: AnyArray,
    lows: AnyArray | None,
    format: str,
    *,
    paired: bool = False,
    group: int = GROUP,
    order: AnyArray | None = None,
    threads: int = 1,
    arena: Arena | None = None,
) -> Packed:
    """Pack weights that are quantised already; nothing is rounded.

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
    if dtype_name(values) != "int8" or not n or not k or (paired and n % 2):
        raise ValueError(f"values are {described(values)}; int8 is needed.")
    if any(t.shape != (n, groups) for t in tensors) or (rowwise and lows is not None):
        raise ValueError(f"scales are {tuple(scales.shape)}; [{n}, {groups}] are needed.")
    values, tensors = contiguous(values), [floats(t) for t in tensors]
    if order is not None:
        order = np.ascontiguousarray(order, dtype=np.int32)
        if order.shape != (k,) or not np.array_equal(np.sort(order), np.arange(k)):
            raise ValueError(f"an order of {k} inputs is needed.")
    packed = Packed(format, n, k, group, paired, _room(n, k, format, group, arena), order)
    need().pack_integers(
        threads, packed.native.address, address(values), k,
        *(address(t) for t in (*tensors, None)[:2]),
    )  # fmt: skip
    return packed


def _room(n: int, k: int, format: str, group: int, arena: Arena | None) -> Bytes:
    """Memory for a packed matrix."""
    size = int(need().packed_bytes(CODES[format], n, k, group))
    return np.empty(size, dtype=np.uint8) if arena is None else arena.take(size)


class Parts:
    """Matrices of one shape and format, each for its own part of the input: heads."""

    def __init__(self, weights: Sequence[Packed]) -> None:
        """Raises ValueError where they differ."""
        kinds = {(w.format, w.n, w.k, w.group, w.paired, w.order is None) for w in weights}
        if len(kinds) != 1 or weights[0].paired or weights[0].order is not None:
            raise ValueError(f"parts are {kinds}; matrices of one shape and format are needed.")
        self.weights = tuple(weights)
        self.k, self.n = weights[0].k, weights[0].n
        self.table = np.stack([w.native.array for w in weights])

    def __call__(self, x: AnyArray, threads: int = 1) -> AnyArray:
        """float32 [m, parts, k] -> [m, parts, n]; a row's bits do not depend on the others. Raises
        ValueError, MemoryError."""
        w, count, m = self.weights[0], len(self.weights), x.shape[0]
        if dtype_name(x) != "float32" or x.shape != (m, count, w.k) or (m and stride(x, 2) != 1):
            raise ValueError(f"x is {described(x)}; float32 [m, {count}, {w.k}].")
        y = empty(x, m, count, w.n)
        table = address(self.table)
        if not need().linear_each(
            threads, table, count, address(x), stride(x), stride(x, 1), m, address(y),
            stride(y), stride(y, 1),
        ):  # fmt: skip
            raise MemoryError(f"no memory for products of {m} rows.")
        return y


def linear(
    x: AnyArray,
    weight: Packed,
    *,
    bias: AnyArray | None = None,
    gain: AnyArray | None = None,
    eps: float = 1e-6,
    act: str = "silu",
    out: AnyArray | None = None,
    add: bool = False,
    threads: int = 1,
    adapted: tuple[Adapted, int] | None = None,
) -> AnyArray:
    """``y = norm(x) W^T + bias``, all float32; x [m, k], y [m, outputs].

    ``gain`` [k]: x is RMS-normed first. A paired weight gives ``act(gate) * up``. ``add``: added to
    ``out``, which must be given then. ``adapted``: which rows of x have adapters, and what these
    call the product; their share is added before the bias. Raises ValueError for shapes that do
    not fit, MemoryError.
    """
    m = x.shape[0]
    if dtype_name(x) != "float32" or x.shape != (m, weight.k) or (m and stride(x, 1) != 1):
        raise ValueError(f"x is {described(x)}; float32 [m, {weight.k}] is needed.")
    if out is None:
        if add:
            raise ValueError("add=True adds to out, which is not given.")
        out = empty(x, m, weight.outputs)
    shape = (m, weight.outputs)
    if dtype_name(out) != "float32" or out.shape != shape or (m and stride(out, 1) != 1):
        raise ValueError(f"out is {described(out)}; float32 [{m}, {weight.outputs}].")
    bias, gain = _vector(bias, weight.n, "bias"), _vector(gain, weight.k, "gain")
    if weight.order is not None:  # a norm does not mind
        x = x[:, weight.order]
        gain = None if gain is None else gain[weight.order]
    plain = gain is None and bias is None and not add and not weight.paired
    around = PLAIN if plain else around_product(gain, eps, bias, add, act)
    adapters, product = (None, 0) if adapted is None else (adapted[0].address, adapted[1])
    good = need().linear(
        threads, weight.native.address, around.address, address(x), stride(x), m, address(out),
        stride(out), adapters, product,
    )  # fmt: skip
    if not good:
        raise MemoryError(f"no memory for a product of {m} rows.")
    return out


def around_product(
    gain: AnyArray | None, eps: float, bias: AnyArray | None, add: bool, act: str
) -> Fields:
    """Record of the norm before a product, and of the bias, sum and activation behind it."""
    values = (address(gain), bits(eps), address(bias), add, ACTIVATIONS[act])
    return Fields(values, gain, bias)


PLAIN = around_product(None, 0.0, None, False, "silu")


def _vector(x: AnyArray | None, size: int, name: str) -> AnyArray | None:
    if x is None:
        return None
    if x.shape != (size,):
        raise ValueError(f"{name} has shape {tuple(x.shape)}; [{size}] is needed.")
    return floats(x)
