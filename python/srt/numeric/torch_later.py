"""``torch``, imported when something of it is first used.

With native CPU kernels nothing is: an engine's process then has no torch, and needs none installed.
Modules that may run in such a process take ``torch``, ``F``, ``dist`` and ``Tensor`` from here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar, cast

NEEDED = (
    "torch is not installed. Native CPU kernels do without it for text models; GPUs, images and "
    "videos, several ranks and --cpu-kernels torch need it: pip install -e '.[srt]' in the "
    "project's folder."
)


class LaterModule:
    """A module that is imported by the first use of an attribute, each of which is then kept."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        try:
            value = getattr(import_module(self._name), attribute)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise ModuleNotFoundError(NEEDED, name="torch") from error
        setattr(self, attribute, value)
        return value


if TYPE_CHECKING:
    import torch as torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import Tensor as Tensor
else:
    torch, dist = LaterModule("torch"), LaterModule("torch.distributed")
    F = LaterModule("torch.nn.functional")
    Tensor = Any
Method = TypeVar("Method", bound=Callable[..., Any])


def without_gradients(method: Method) -> Method:
    """The method under torch's inference mode, where torch is in this process: passes by native
    kernels do without."""

    @wraps(method)
    def called(*arguments: Any, **named: Any) -> Any:
        if "torch" not in sys.modules:
            return method(*arguments, **named)
        with torch.inference_mode():
            return method(*arguments, **named)

    return cast(Method, called)


__all__ = ["NEEDED", "F", "Tensor", "dist", "torch", "without_gradients"]
