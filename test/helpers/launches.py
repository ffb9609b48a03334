"""A count of what a pass would launch on a GPU, taken on a CPU.

An operation of torch is one launch, whatever it computes; views and new memory are none. A Triton
kernel is one launch and is not run, so that its outputs are whatever the memory held. An array that
is sent to the device is one copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
from sgl_kernel.triton import append, attention, norm, sampling
from sglang.srt.numeric import torch_later
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.jit import JITFunction

# Compiled, not interpreted, whatever the environment is when a worker is made.
KERNELS = (append, attention, norm, sampling)
# Operations that give a view or new memory: nothing of them reaches the device.
FREE = {
    "lift_fresh", "detach", "detach_", "view", "_unsafe_view", "view_as", "split",
    "split_with_sizes", "slice", "select", "unbind", "chunk", "squeeze", "unsqueeze", "flatten",
    "unflatten", "expand", "transpose", "t", "permute", "as_strided", "alias", "empty",
    "new_empty", "empty_like", "empty_strided",
}  # fmt: skip
FROM_NUMPY = torch.from_numpy


class Launches(TorchDispatchMode):
    """The names of the launches and copies since ``clear``, in order: of torch's operations, of
    Triton's kernels, "send" for an array that is sent."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self._sent: list[Tensor] = []  # kept, so that no other tensor gets their addresses

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = function.name().removeprefix("aten::").partition(".")[0]
        out = function(*args, **(kwargs or {}))
        # A copy of what was counted when it was sent, and a cast to the dtype that x has.
        again = name == "copy_" and any(args[1].data_ptr() == x.data_ptr() for x in self._sent)
        same = name == "to" and out.data_ptr() == args[0].data_ptr()
        if not (name in FREE or again or same):
            self.names.append(name)
        return out

    def sent(self, array: np.ndarray[Any, Any]) -> Tensor:
        """``torch.from_numpy``, counted."""
        tensor = FROM_NUMPY(array)
        self.names.append("send")
        self._sent.append(tensor)
        return tensor

    def count(self) -> Counter[str]:
        return Counter(self.names)

    def clear(self) -> None:
        self.names.clear()
        self._sent.clear()


@contextmanager
def counted() -> Iterator[Launches]:
    """Count in this thread. No Triton kernel runs."""
    launches = Launches()

    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        launches.names.append(self.fn.__name__)

    with (
        mock.patch.object(JITFunction, "run", run),
        mock.patch.object(torch, "from_numpy", launches.sent),
        mock.patch.object(torch_later.torch, "from_numpy", launches.sent),
        launches,
    ):
        yield launches


def uncounted(launches: Launches, name: str, work: Callable[..., Any]) -> Callable[..., Any]:
    """``work`` as one launch called ``name``, whatever it does."""

    def one(*args: Any, **kwargs: Any) -> Any:
        kept = list(launches.names)
        out = work(*args, **kwargs)
        launches.names[:] = [*kept, name]
        return out

    return one
