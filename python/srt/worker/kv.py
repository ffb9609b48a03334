"""KV pools: the keys and values of all layers, by slot, and how many fit in memory.

Page ``p`` is the slots ``[p * page_size, (p + 1) * page_size)``. One more slot, which belongs to no
page, holds zeros: attention reads it where a row is padded.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import torch
from torch import Tensor

from srt.config import MemoryConfig
from srt.models.config import ModelSpec

# On a CPU memory is everybody's: no more than this many longest sequences by default.
CPU_CONTEXTS = 32


class KVPool:
    """``keys[layer]`` and ``values[layer]`` are [pages * page_size + 1, kv_heads, head_dim];
    ``scales[layer]`` is empty, or of int8 keys and values, float32 [slots, kv_heads] each."""

    def __init__(
        self,
        layers: int,
        kv_heads: int,
        head_dim: int,
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Raises MemoryError where the device cannot hold it."""
        self.pages, self.page_size = pages, page_size
        shape = (pages * page_size + 1, kv_heads, head_dim)
        try:
            self.keys = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]
            self.values = [torch.empty(shape, dtype=dtype, device=device) for _ in range(layers)]
            self.scales: list[tuple[Tensor, ...]] = [
                tuple(torch.empty(shape[:2], device=device) for _ in range(2))
                if dtype == torch.int8
                else ()
                for _ in range(layers)
            ]
        except RuntimeError as error:  # out of memory on any device
            size = 2 * layers * shape[0] * kv_heads * head_dim * dtype.itemsize
            raise MemoryError(
                f"a KV cache of {pages * page_size} tokens needs {size / 1e9:.2f} GB, which "
                f"{device} cannot give; lower max_total_tokens or mem_fraction_static."
            ) from error
        for pool in self.keys + self.values:
            pool[-1].zero_()

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.pages * self.page_size


def bytes_per_token(spec: ModelSpec, dtype: torch.dtype, ranks: int = 1) -> int:
    """Bytes of keys and values of one token in all layers, on one of ``ranks``."""
    scale = 4 if dtype == torch.int8 else 0  # of each head
    size = spec.head_dim * dtype.itemsize + scale
    return 2 * spec.num_layers * spec.num_kv_heads // ranks * size


def pool_pages(
    memory: MemoryConfig,
    token_bytes: int,
    weight_bytes: int,
    context_length: int,
    device: torch.device,
    available: int,
) -> int:
    """Pages of the pool: ``max_total_tokens`` if set, else what is left of the memory's share.

    ``available`` is ``available_memory(device)`` before the weights were read. Raises MemoryError
    where not even one page fits.
    """
    size = memory.page_size
    if memory.max_total_tokens:
        pages = memory.max_total_tokens // size
        if pages == 0:
            raise MemoryError(
                f"max_total_tokens is {memory.max_total_tokens}, less than one page of {size} "
                f"tokens; raise it or lower page_size."
            )
        return pages
    on_cpu = device.type == "cpu"
    share = memory.mem_fraction_static or (0.3 if on_cpu else 0.85)
    tokens = int(available * share - weight_bytes) // token_bytes
    if on_cpu:
        tokens = min(tokens, CPU_CONTEXTS * context_length)
    if tokens < size:
        raise MemoryError(
            f"{share:.0%} of the {available / 1e9:.2f} GB free on {device} leave no room for a KV "
            f"cache beside {weight_bytes / 1e9:.2f} GB of weights; raise mem_fraction_static or "
            f"set max_total_tokens."
        )
    return tokens // size


def available_memory(device: torch.device) -> int:
    """Bytes free on the device; on a CPU no more than the control group allows."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return free
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        # Cached file pages count as used by the group, yet give way to allocations.
        used = int((group / "memory.current").read_text()) - int(stat["inactive_file"])
        return max(0, min(free, int(limit) - used))
    except (OSError, ValueError, KeyError):
        return free
