"""Staging: host arrays to a device without waiting for it.

A copy from ordinary memory to a GPU waits until all that is queued there is done, which would undo
planning ahead of it. A copy from pinned memory is queued like a kernel. Torch keeps pinned blocks
and gives one out again only after the copies from it are done.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


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


def send_all(arrays: dict[str, np.ndarray[Any, Any]], device: torch.device) -> dict[str, Tensor]:
    """All arrays, one-dimensional and of one dtype, in one copy."""
    packed = send(np.concatenate(list(arrays.values())), device)
    return dict(zip(arrays, packed.split([len(array) for array in arrays.values()])))
