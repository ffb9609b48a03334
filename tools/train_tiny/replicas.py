"""Data parallel training: every replica is a process with one thread and some rows of each batch.

Two processes of one thread use two cores better than one process of two threads: small operations
and the optimizer run beside each other instead of waiting. Replicas make the same batches and the
same updates; only gradients and orthogonalised updates are exchanged.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.multiprocessing.spawn import spawn

from tools.train_tiny.corpus import Batch
from tools.train_tiny.model import TinyLlama


@dataclass(frozen=True)
class Replica:
    """Index of this process, and the number of processes."""

    rank: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """Whether this one writes checkpoints and logs."""
        return self.rank == 0

    def backward(self, model: TinyLlama, batch: Batch) -> float:
        """Leave the whole batch's gradient in the parameters; returns its loss."""
        arrays = (batch.tokens, batch.documents, batch.weights)
        if self.count == 1:
            loss = model.loss(*map(torch.from_numpy, arrays))
            loss.backward()
            return float(loss.detach())
        mine = [torch.from_numpy(a[self.rank :: self.count].copy()) for a in arrays]
        total = torch.zeros(())
        if len(mine[0]):
            loss = model.loss(*mine) * float(mine[2].sum() / batch.weights.sum())
            loss.backward()
            total = loss.detach()
        for param in model.parameters():
            if param.grad is None:
                param.grad = torch.zeros_like(param)
        grads = [param.grad for param in model.parameters() if param.grad is not None]
        flat = torch.cat([total.reshape(1), *(grad.flatten() for grad in grads)])
        dist.all_reduce(flat)
        sizes = [grad.numel() for grad in grads]
        for grad, part in zip(grads, flat[1:].split(sizes), strict=True):
            grad.copy_(part.view_as(grad))
        return float(flat[0])

    def shared(self, stack: Tensor, work: Callable[[Tensor], Tensor]) -> Tensor:
        """``work(stack)``, of which every replica does some entries."""
        if self.count == 1:
            return work(stack)
        out = torch.zeros_like(stack)
        out[self.rank :: self.count] = work(stack[self.rank :: self.count])
        dist.all_reduce(out)
        return out


ALONE = Replica()


def run(count: int, work: Callable[[Replica, Any], None], settings: Any) -> None:
    """Call ``work(replica, settings)`` in ``count`` processes, or here if it is one."""
    if count == 1:
        work(ALONE, settings)
        return
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{folder}/meeting"
        spawn(_main, (count, meeting, work, settings), nprocs=count)


def _main(
    rank: int, count: int, meeting: str, work: Callable[[Replica, Any], None], settings: Any
) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=count)
    try:
        work(Replica(rank, count), settings)
    finally:
        dist.destroy_process_group()
