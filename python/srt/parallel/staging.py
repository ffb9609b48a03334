"""Staging: host arrays to a device, and results back, without waiting for the device.

A copy from ordinary memory to a GPU waits until all that is queued there is done, which would undo
planning ahead of it. A copy from pinned memory is queued like a kernel. Torch keeps pinned blocks
and gives one out again only after the copies from it are done.

Results are fetched without holding up the next pass:

    fetch    after the pass is queued: copies are queued behind it, beside the stream of passes
    wait     blocks for this pass alone, while later passes run

On a CPU a tensor that exists is computed, so there is nothing to copy or to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from sglang.srt.numeric.host_arrays import on_host, torch_dtype
from sglang.srt.numeric.torch_later import Tensor, torch

# Bytes. Triton compiles a kernel anew for each combination of pointers that are multiples of it.
ALIGNMENT = 16


def taken(x: Any, index: Any) -> Any:
    """Elements of an array or a tensor, by an index of the same kind."""
    return x[index] if isinstance(x, np.ndarray) else x.index_select(0, index)


def replaced(x: Any, index: Any, values: Any) -> Any:
    """A copy of an array or a tensor with other values at an index of the same kind."""
    if not isinstance(x, np.ndarray):
        return x.index_copy(0, index, values)
    x = x.copy()
    x[index] = values
    return x


def send(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    """``array`` as a tensor on ``device``, same shape and dtype. On a CPU it may share memory."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    if device.type != "cuda":
        return host.to(device)
    return host.pin_memory().to(device, non_blocking=True)


def send_into(array: np.ndarray[Any, Any], target: Tensor) -> None:
    """Overwrite the beginning of ``target``, one-dimensional, with ``array`` of its dtype."""
    host = torch.from_numpy(np.ascontiguousarray(array))
    if target.device.type == "cuda":
        host = host.pin_memory()
    target[: len(array)].copy_(host, non_blocking=True)


def send_all(arrays: dict[str, np.ndarray[Any, Any]], device: Any) -> dict[str, Any]:
    """All arrays in one copy: tensors of the same shapes and dtypes, each of which begins at a
    multiple of ``ALIGNMENT``. For ``HOST`` the arrays themselves."""
    if on_host(device):
        return arrays
    firsts = aligned_offsets([array.nbytes for array in arrays.values()])
    packed = np.empty(firsts[-1], dtype=np.uint8)
    for array, first in zip(arrays.values(), firsts):
        packed[first : first + array.nbytes].view(array.dtype)[:] = array.reshape(-1)
    sent = send(packed, device)
    typed = {dtype: sent.view(torch_dtype(dtype)) for dtype in {x.dtype for x in arrays.values()}}
    out = {}
    for (name, array), first in zip(arrays.items(), firsts):
        part = typed[array.dtype][first // array.itemsize :][: array.size]
        out[name] = part if array.ndim == 1 else part.view(array.shape)
    return out


def aligned_offsets(sizes: Sequence[int], unit: int = 1) -> list[int]:
    """Offsets of parts of ``sizes`` elements of ``unit`` bytes, each at a multiple of
    ``ALIGNMENT`` bytes, and the end of the last [len(sizes) + 1]."""
    step, out = ALIGNMENT // unit, [0]
    for size in sizes:
        out.append(out[-1] + -(-size // step) * step)
    return out


class Lane(Protocol):
    """Queue of copies."""

    def copy(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[], None]]:
        """Host tensors that will hold the values, and what blocks until they do."""
        ...


class Here:
    """A ``Lane`` for a device that computes synchronously (a CPU): nothing is copied or waited
    for."""

    def copy(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[], None]]:
        return list(tensors), lambda: None


class Beside:
    """A CUDA stream beside the one that computes: pinned memory, one event for all copies.

    The pass's stream may go on at once: the next pass does not overwrite what is being copied,
    because torch gives the memory of ``tensors`` out again only after this stream is done with it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def copy(self, tensors: Sequence[Tensor]) -> tuple[list[Tensor], Callable[[], None]]:
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        done, hosts = torch.cuda.Event(), []
        with torch.cuda.stream(self.stream):
            for tensor in tensors:
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                hosts.append(host.copy_(tensor, non_blocking=True))
                tensor.record_stream(self.stream)
            done.record(self.stream)
        return hosts, done.synchronize


class Fetched:
    """Values on their way to the host."""

    def __init__(self, hosts: list[Tensor], block: Callable[[], None]) -> None:
        self._hosts, self._block = hosts, block

    def wait(self) -> list[Tensor]:
        """The values, as CPU tensors in the order of the requests."""
        self._block()
        return self._hosts


class Readback:
    """Fetches of one device, in order."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane

    def fetch(self, tensors: Sequence[Tensor]) -> Fetched:
        """Queue copies of ``tensors`` after what computes them."""
        return Fetched(*self.lane.copy(tensors))


def readback_of(device: torch.device) -> Readback:
    return Readback(Beside(device) if device.type == "cuda" else Here())
