"""Arrays that kernels read and write: NumPy's and torch's alike.

Results are of the kind of the arguments. bfloat16 and float8 of NumPy are those of ``ml_dtypes``.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

# NumPy's or torch's; the latter on the CPU.
AnyArray: TypeAlias = Any
# Codes of the native side.
TYPES = {"float32": 0, "bfloat16": 1, "int8": 2, "float8_e4m3fn": 3}


def address(x: AnyArray | None) -> int | None:
    """Address of the first element in memory, in bytes; None for None."""
    if x is None:
        return None
    if isinstance(x, np.ndarray):
        return int(x.__array_interface__["data"][0])
    return int(x.data_ptr())


def dtype_name(x: AnyArray) -> str:
    """The dtype's name without the library's: ``float32``, not ``torch.float32``."""
    return str(x.dtype).removeprefix("torch.")


def stride(x: AnyArray, dim: int = 0) -> int:
    """Elements from one index of a dimension to the next."""
    if isinstance(x, np.ndarray):
        return x.strides[dim] // x.itemsize
    return int(x.stride(dim))


def on_cpu(x: AnyArray) -> bool:
    return isinstance(x, np.ndarray) or x.device.type == "cpu"


def contiguous(x: AnyArray) -> AnyArray:
    return np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x.contiguous()


def is_contiguous(x: AnyArray) -> bool:
    return bool(x.flags.c_contiguous if isinstance(x, np.ndarray) else x.is_contiguous())


def floats(x: AnyArray) -> AnyArray:
    """The same as contiguous float32; ``x`` itself where it is that."""
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(x, dtype=np.float32)
    return x.float().contiguous()


def int32(x: AnyArray) -> AnyArray:
    """The same as contiguous int32."""
    if isinstance(x, np.ndarray):
        return np.ascontiguousarray(x, dtype=np.int32)
    return x.int().contiguous()


def empty(like: AnyArray, *shape: int) -> AnyArray:
    """Uninitialised float32 array of this shape, of the library of ``like`` (NumPy or torch)."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, dtype=np.float32)
    import torch

    return torch.empty(shape)


def empty_int32(like: AnyArray, count: int) -> AnyArray:
    """Uninitialised int32 [count], of the library of ``like`` (NumPy or torch)."""
    if isinstance(like, np.ndarray):
        return np.empty(count, dtype=np.int32)
    return like.new_empty(count).int()


def size(x: AnyArray) -> int:
    """Number of elements."""
    return int(x.size if isinstance(x, np.ndarray) else x.numel())


def described(x: AnyArray) -> str:
    """Dtype and shape as text, for error messages."""
    return f"{x.dtype} {tuple(x.shape)}"
