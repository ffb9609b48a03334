"""Arrays of NumPy in place of tensors: dtypes, the device they lie on, and their way to torch.

bfloat16 and float8 are dtypes of ``ml_dtypes``: they cast, slice and reorder as float32 does, so
that one code serves all weights. Torch's tensors of the same bits share the memory (``tensor``).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from ml_dtypes import bfloat16, float8_e4m3fn
from sglang.srt.numeric.torch_later import Tensor, torch

Array: TypeAlias = np.ndarray[Any, Any]
DType: TypeAlias = np.dtype[Any]
# An Array with native CPU kernels, else a Tensor: what a layer holds, and what is computed of it.
Weight: TypeAlias = Any

FLOAT32, FLOAT16, FLOAT64 = np.dtype(np.float32), np.dtype(np.float16), np.dtype(np.float64)
BFLOAT16, FLOAT8, INT8 = np.dtype(bfloat16), np.dtype(float8_e4m3fn), np.dtype(np.int8)
# Dtypes that torch makes no tensors of by itself, and those of the same size that it does.
_CARRIERS = {BFLOAT16: np.uint16, FLOAT8: np.uint8}


class Device(str):
    """A device by torch's name for it, which torch's functions take: ``cpu``, ``cuda:1``.
    ``host``: arrays on it are NumPy's."""

    host: bool = False

    @property
    def type(self) -> str:
        """``cpu`` or ``cuda``."""
        return str(self).partition(":")[0]


class HostDevice(Device):
    """The CPU of a process that may have no torch."""

    host = True


HOST = HostDevice("cpu")


def on_host(device: Any) -> bool:
    """Whether arrays for ``device`` (a ``Device`` or torch's) are NumPy's."""
    return isinstance(device, HostDevice)


def torch_dtype(dtype: DType) -> torch.dtype:
    """Torch's dtype of the same name."""
    found: torch.dtype = getattr(torch, dtype.name)
    return found


def numpy_dtype(dtype: Any) -> DType:
    """NumPy's dtype of the same name as torch's, or ``dtype`` itself."""
    if isinstance(dtype, np.dtype):
        return dtype
    return dtype_named(str(dtype).removeprefix("torch."))


def dtype_named(name: str) -> DType:
    """The dtype with a name that NumPy and torch share. Raises KeyError, TypeError."""
    known = {"bfloat16": BFLOAT16, "float8_e4m3fn": FLOAT8}
    return known[name] if name in known else np.dtype(name)


def tensor(x: Array) -> Tensor:
    """The array as a tensor on the CPU; it shares the memory where no stride is negative."""
    if any(stride < 0 for stride in x.strides) or not x.flags.writeable:
        x = x.copy()
    carrier = _CARRIERS.get(x.dtype)
    if carrier is None:
        return torch.from_numpy(x)
    return torch.from_numpy(x.view(carrier)).view(torch_dtype(x.dtype))


def array(x: Any) -> Array:
    """An array of a tensor on the CPU, which shares its memory; an array as it is."""
    if isinstance(x, np.ndarray):
        return x
    dtype = numpy_dtype(x.dtype)
    carrier = _CARRIERS.get(dtype)
    if carrier is None:
        return x.detach().numpy()  # type: ignore[no-any-return]
    same = torch.uint16 if dtype.itemsize == 2 else torch.uint8
    return x.detach().view(same).numpy().view(dtype)  # type: ignore[no-any-return]


def storage_key(x: Weight) -> int:
    """Key of the memory that an array or a tensor is a view of."""
    if not isinstance(x, np.ndarray):
        return int(x.untyped_storage().data_ptr())
    owner: Any = x
    while getattr(owner, "base", None) is not None:
        owner = owner.base
    return id(owner)


def outline(shape: tuple[int, ...], dtype: DType) -> Array:
    """An array of a shape with the memory of one element, for what is only looked at."""
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), shape, (0,) * len(shape))


def stacked(first: Array, count: int) -> Array:
    """[count, ...]: an array and those that follow it in memory."""
    return beginning(first, (count, *first.shape))


def beginning(first: Array, shape: tuple[int, ...]) -> Array:
    """A contiguous array of ``shape`` whose memory begins where that of ``first`` does, which is a
    part of it; an outline where that is one."""
    strides = np.cumprod((first.itemsize, *reversed(shape[1:])))[::-1]
    if not first.strides[-1]:
        strides = np.zeros_like(strides)
    return np.lib.stride_tricks.as_strided(first, shape, tuple(strides.tolist()))


def tanh(x: Weight) -> Weight:
    """The hyperbolic tangent, in place."""
    return np.tanh(x, out=x) if isinstance(x, np.ndarray) else x.tanh_()


def address(x: Weight) -> int:
    """Return the address of the first number."""
    return int(x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr())
