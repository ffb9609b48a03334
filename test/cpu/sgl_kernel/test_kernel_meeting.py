"""Sums and gathers of ranks, threads here, through shared memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from mmap import mmap

import pytest
import torch
from sgl_kernel.meeting import Meeting, meeting_bytes
from sgl_kernel.native import AVAILABLE
from torch import Tensor

pytestmark = pytest.mark.skipif(not AVAILABLE, reason="the native part is not built")
SLOT = 1 << 16  # floats that are exchanged at a turn


def of_ranks(size: int, work: Callable[[Meeting, int], list[Tensor]]) -> list[list[Tensor]]:
    """Results of ``work(meeting, rank)`` on each rank."""
    memory = mmap(-1, meeting_bytes(size))
    met = [Meeting(memory, rank, size) for rank in range(size)]
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(work, met, range(size)))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_sums_are_the_same_bits_on_every_rank(size: int) -> None:
    counts = [1, 17, SLOT, 5, 2 * SLOT + 3, 1] * 3
    values = [[torch.randn(n) for n in counts] for _ in range(size)]
    wanted = [torch.stack(parts).double().sum(0) for parts in zip(*values)]
    found = of_ranks(size, lambda met, rank: [met.sum(x.clone()) for x in values[rank]])
    for sums in found:
        for got, first, want in zip(sums, found[0], wanted):
            assert torch.equal(got, first)
            torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [2, 3])
def test_gathered_rows_are_side_by_side(size: int) -> None:
    shapes = [(1, 5), (3, SLOT // 2 + 7), (40, 33), (0, 4), (2, 1)]
    values = [[torch.randn(shape) for shape in shapes] for _ in range(size)]
    found = of_ranks(size, lambda met, rank: [met.gather(x) for x in values[rank]])
    for gathered in found:
        for number, got in enumerate(gathered):
            assert torch.equal(got, torch.cat([own[number] for own in values], dim=1))


def test_memory_and_ranks_that_do_not_fit() -> None:
    memory = mmap(-1, meeting_bytes(2))
    with pytest.raises(ValueError, match=r"3 ranks need \d+ bytes to meet"):
        Meeting(memory, 0, 3)
    for rank, size in ((2, 2), (-1, 2), (0, 65)):
        with pytest.raises(ValueError, match="at most 64 ranks can"):
            Meeting(memory, rank, size)
