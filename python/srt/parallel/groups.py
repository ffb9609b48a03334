"""Group: the ranks that hold slices of the same layers, and the two collectives they need.
Shard: the part of a model that one rank holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sglang.srt.numeric.torch_later import Tensor, dist, torch

if TYPE_CHECKING:
    from sgl_kernel.meeting import Meeting


@dataclass(frozen=True)
class Group:
    """Ranks ``0 .. size-1`` of one tensor-parallel group; this process is ``rank``.

    ``handle`` is the torch process group, None for the default one. With size 1 every collective
    is the identity and torch.distributed is never touched.
    """

    rank: int = 0
    size: int = 1
    handle: Any = None

    @property
    def meeting(self) -> Meeting | None:
        """The memory that the ranks share, where all of them are on one machine."""
        return None

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

    def heads(self, total: int, what: str) -> tuple[int, int]:
        """This rank's number of ``total`` heads, and the first of them. Where ranks outnumber key
        heads, several ranks hold the same one. Raises ValueError where neither divides the
        other."""
        if self.size > total and self.size % total == 0:
            return 1, self.rank * total // self.size
        count = self.share(total, what)
        return count, count * self.rank

    def rows(self, total: int) -> tuple[int, int, int]:
        """A share of ``total`` rows of a table, the last shares padded: the rows of every rank, the
        first of this rank's, and how many of them are rows of the table."""
        each = -(-total // self.size)
        first = min(each * self.rank, total)
        return each, first, max(0, min(each, total - first))


@dataclass(frozen=True)
class SharedGroup(Group):
    """Ranks of one machine: float32 tensors of a CPU go through ``memory``, others as in ``Group``.
    Sums are the same bits on every rank."""

    memory: Meeting | None = None

    @property
    def meeting(self) -> Meeting | None:
        return self.memory

    def all_reduce(self, x: Tensor) -> Tensor:
        if self.memory is None or x.dtype != torch.float32 or x.device.type != "cpu":
            return super().all_reduce(x)
        found: Tensor = self.memory.sum(x.contiguous())
        return found

    def all_gather(self, x: Tensor) -> Tensor:
        if self.memory is None or x.dtype != torch.float32 or x.device.type != "cpu":
            return super().all_gather(x)
        found: Tensor = self.memory.gather(x.contiguous())
        return found


def _same(number: int) -> int:
    return number


@dataclass(frozen=True)
class Shard:
    """The part of a model that one rank holds: a share of some of its layers.

    Attributes:
        group: the tensor-parallel ranks of its stage.
        layers: of its pipeline stage; None: all of them.
        neighbours: ranks that share the memory of the machine, this one included.
        smallest: the smallest of a number that every rank gives, in the same order.
    """

    group: Group = field(default_factory=Group)
    layers: range | None = None
    neighbours: int = 1
    smallest: Callable[[int], int] = _same

    @property
    def whole(self) -> bool:
        """Whether it is the whole model."""
        return self.group.size == 1 and self.layers is None


WHOLE = Shard()
