"""Meeting: sums over the ranks of one machine, through memory that all of them map."""

from __future__ import annotations

import weakref
from mmap import mmap

import numpy as np

from sgl_kernel.arrays import AnyArray, address, empty, size
from sgl_kernel.native import need

MOST_RANKS = 64


def meeting_bytes(size: int) -> int:
    """Bytes of the memory that ``size`` ranks share; zeros before the first one meets."""
    return int(need().meeting_bytes(size))


class Meeting:
    """The ranks ``0 .. size-1`` that map ``memory``; this process is ``rank``. All of them call the
    same methods in the same order, with the same shapes."""

    def __init__(self, memory: mmap, rank: int, size: int) -> None:
        """Raises ValueError for memory that is too small, or too many ranks."""
        if not 0 <= rank < size <= MOST_RANKS:
            raise ValueError(f"rank {rank} of {size} cannot meet; at most {MOST_RANKS} ranks can.")
        if len(memory) < meeting_bytes(size):
            raise ValueError(
                f"{size} ranks need {meeting_bytes(size)} bytes to meet; {len(memory)} are given."
            )
        self._memory = np.frombuffer(memory, dtype=np.uint8)
        start = int(self._memory.__array_interface__["data"][0])
        self.size, self.address = size, int(need().meeting_new(start, rank, size))
        weakref.finalize(self, need().meeting_free, self.address).atexit = False

    def sum(self, x: AnyArray, threads: int = 1) -> AnyArray:
        """Add up the ranks' x, contiguous float32 of any shape, in place; the bits are the same on
        every rank. Waits for all ranks."""
        need().meeting_sum(self.address, threads, address(x), address(x), size(x))
        return x

    def gather(self, x: AnyArray, threads: int = 1) -> AnyArray:
        """Concatenate the ranks' x, contiguous float32 [rows, width] -> [rows, size * width]."""
        rows, width = x.shape
        out = empty(x, rows, self.size * width)
        if rows * width:
            need().meeting_gather(
                self.address, threads, address(x), address(out), rows, width
            )  # fmt: skip
        return out
