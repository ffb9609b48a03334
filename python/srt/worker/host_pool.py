"""HostPool: host memory for KV pages that do not fit on the device.

Page ``h`` of the pool holds the content of one page of the device's ``KVPool``: keys, values and
scales of all layers. On a GPU, pages are copied through pinned staging memory, in the order of the
stream. Copies to the host are gathered on the device. They are put into the pool when the pool is
next read or written, and the launching thread waits for them then. So a pass that copies both ways
is launched only when the passes before it have ended.

Other threads may read and write pages that no pass uses at that time (``worker/disk_pool``).
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from sglang.srt.config import MemoryConfig
from sglang.srt.core.batch import PageMoves
from sglang.srt.core.ints import Ints
from sglang.srt.numeric.host_arrays import HOST, Array, Weight, address, array
from sglang.srt.numeric.torch_later import Tensor, torch, without_gradients
from sglang.srt.parallel.staging import taken
from sglang.srt.worker.kv import KVPool, available_memory


@dataclass(frozen=True)
class Arriving:
    """Copies from a GPU that may be incomplete. After ``event``, ``staged[i]`` holds the contents
    of the pages ``into`` of the pool's part ``i``."""

    event: torch.cuda.Event
    staged: list[Tensor]
    into: Tensor


class HostPool:
    """Host memory with copies of a device's pages.

    Args:
        pool: KV pool of the device.
        pages: number of host pages.

    Attributes:
        page_bytes: bytes of a page, over all layers.

    Raises MemoryError if the machine has too little memory.
    """

    def __init__(self, pool: KVPool, pages: int) -> None:
        self.pages = pages
        parts = [_by_page(part, pool) for part in _memory(pool)]
        self._cuda = not isinstance(parts[0], np.ndarray) and parts[0].is_cuda
        self._device = parts if self._cuda else [array(part) for part in parts]
        self._arriving: Arriving | None = None
        self._settling = threading.Lock()
        width = self.page_bytes = sum(part.shape[1] for part in self._device)
        try:
            self._host = [np.empty((pages, part.shape[1]), np.uint8) for part in parts]
        except MemoryError as error:
            raise MemoryError(
                f"host memory for {pages} pages of KV needs {pages * width / 1e9:.2f} GB, which "
                "this machine cannot give; lower --hicache-size or --hicache-ratio."
            ) from error

    @without_gradients
    def move(self, moves: PageMoves) -> None:
        """Copy ``stores`` to host memory, then ``loads`` to the device. On a GPU this queues the
        copies on the current stream."""
        if moves.stores:
            self._store(moves.stores, moves.stored)
        if moves.loads:
            self._load(moves.loads, moves.loaded)

    @without_gradients
    def read_pages(self, pages: Ints) -> Array:
        """Return the bytes of pages that have been stored, uint8 [pages, page_bytes]."""
        self._settle()
        index = _index(pages)
        return np.concatenate([host[index] for host in self._host], 1)

    @without_gradients
    def write_pages(self, pages: Ints, rows: Array) -> None:
        """Copy ``rows``, uint8 [pages, page_bytes], to pages. Device copies in flight are stored
        first, because an earlier pass may have copied to the same pages."""
        self._settle()
        index, first = _index(pages), 0
        for host in self._host:
            host[index] = rows[:, first : first + host.shape[1]]
            first += host.shape[1]

    def _store(self, pages: Ints, into: Ints) -> None:
        source, target = _index(pages), _index(into)
        self._settle()
        if not self._cuda:
            for device, host in zip(self._device, self._host):
                host[target] = device[source]
            return
        at = torch.from_numpy(source).pin_memory().to(self._device[0].device, non_blocking=True)
        staged = []
        for device in self._device:
            part = torch.empty((len(pages), device.shape[1]), dtype=torch.uint8, pin_memory=True)
            rows: Tensor = taken(device, at)
            staged.append(part.copy_(rows, non_blocking=True))
        event = torch.cuda.Event()
        event.record()
        self._arriving = Arriving(event, staged, torch.from_numpy(target))

    def _load(self, pages: Ints, into: Ints) -> None:
        source, target = _index(pages), _index(into)
        self._settle()
        if not self._cuda:
            for device, host in zip(self._device, self._host):
                device[target] = host[source]
            return
        rows = torch.from_numpy(source)
        at = torch.from_numpy(target).pin_memory().to(self._device[0].device, non_blocking=True)
        for device, host in zip(self._device, self._host):
            part = torch.empty((len(pages), device.shape[1]), dtype=torch.uint8, pin_memory=True)
            torch.index_select(torch.from_numpy(host), 0, rows, out=part)
            device.index_copy_(0, at, part.to(device.device, non_blocking=True))

    def _settle(self) -> None:
        """Wait for the copies from the device, if any, and store them in the pool."""
        with self._settling:
            arriving, self._arriving = self._arriving, None
            if arriving is not None:
                arriving.event.synchronize()
                for host, part in zip(self._host, arriving.staged):
                    torch.from_numpy(host).index_copy_(0, arriving.into, part)


def host_pages(memory: MemoryConfig, pages: int, token_bytes: int, device: Any) -> int:
    """Return how many host pages a configuration requests in addition to the device's ``pages``, 0
    for none. ``token_bytes``: bytes of one token in all layers.

    Raises MemoryError if not even one page fits, or less memory is free. On a CPU the device's
    pages use the same memory, most of them later.
    """
    if not memory.enable_hierarchical_cache:
        return 0
    page_bytes = memory.page_size * token_bytes
    wanted = int(pages * memory.hicache_ratio)
    flag = f"--hicache-ratio {memory.hicache_ratio:g}"
    if memory.hicache_size:
        wanted = int(memory.hicache_size * 1e9) // page_bytes
        flag = f"--hicache-size {memory.hicache_size:g}"
    if wanted < 1:
        raise MemoryError(
            f"{flag} leaves no room for a page of {page_bytes / 1e6:.2g} MB in host memory; "
            "raise it."
        )
    free = available_memory(HOST)
    if device.type == "cpu":
        free = max(free - pages * page_bytes, 0)
    if wanted * page_bytes > free:
        beside = " beside the KV cache" if device.type == "cpu" else ""
        raise MemoryError(
            f"{flag} needs {wanted * page_bytes / 1e9:.2f} GB of host memory and "
            f"{free / 1e9:.2f} GB are free{beside}; lower it."
        )
    return wanted


def _memory(pool: KVPool) -> list[Weight]:
    """Return all memory of a pool: keys, values that are not part of the keys, and scales."""
    own = [] if address(pool.values[0]) == address(pool.keys[0]) else pool.values
    scales = [scale for layer in pool.scales for scale in {id(s): s for s in layer}.values()]
    return [*pool.keys, *own, *scales]


def _by_page(part: Weight, pool: KVPool) -> Weight:
    """Return a view of the pool's pages as bytes, uint8 [pages, bytes of a page]."""
    pages = part[: pool.pages * pool.page_size].reshape(pool.pages, -1)
    return pages.view(np.uint8 if isinstance(pages, np.ndarray) else torch.uint8)


def _index(pages: Ints) -> Array:
    return np.frombuffer(pages, dtype=np.int32).astype(np.int64)
