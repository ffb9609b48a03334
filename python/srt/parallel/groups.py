"""Group: the ranks that hold slices of the same layers, and the two collectives they need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Group:
    """Ranks ``0 .. size-1`` of one tensor-parallel group; this process is ``rank``.

    ``handle`` is the torch process group, None for the default one. With size 1 every collective
    is the identity and torch.distributed is never touched.
    """

    rank: int = 0
    size: int = 1
    handle: Any = None

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum of ``x`` over the ranks, same shape. May overwrite ``x``."""
        if self.size > 1:
            dist.all_reduce(x, group=self.handle)
        return x

    def all_gather(self, x: Tensor) -> Tensor:
        """The ranks' ``x`` side by side along the last dimension, in rank order."""
        if self.size == 1:
            return x
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous(), group=self.handle)
        return torch.cat(parts, dim=-1)

    def share(self, total: int, what: str) -> int:
        """This rank's share of ``total``. Raises ValueError where it does not divide evenly."""
        if total % self.size:
            raise ValueError(
                f"{what} is {total}, which {self.size} tensor-parallel ranks cannot share evenly; "
                f"use a size that divides it."
            )
        return total // self.size
