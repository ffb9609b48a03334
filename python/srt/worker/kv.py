"""KV pools: the keys and values of all layers, by slot, and the number of pages that fit in memory.

Page ``p`` is the slots ``[p * page_size, (p + 1) * page_size)``. One more slot, which belongs to no
page, holds zeros: attention reads this slot for padding.
"""

from __future__ import annotations

import gc
import logging
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from sglang.srt.attention.attention_protocol import KVShape
from sglang.srt.config import MemoryConfig
from sglang.srt.core.batch import TokenCopies
from sglang.srt.models.model_spec import ModelSpec
from sglang.srt.numeric.host_arrays import (
    FLOAT32,
    INT8,
    Weight,
    numpy_dtype,
    on_host,
    torch_dtype,
)
from sglang.srt.numeric.torch_later import torch

log = logging.getLogger("sglang.srt.worker")
# Default limit of the KV cache on a CPU, in longest sequences: other programs share the memory.
CPU_CONTEXTS = 32


class KVPool:
    """``keys[layer]``, ``values[layer]``: [pages * page_size + 1, heads, dimensions]. With shared
    KV, values are a view of the keys. ``scales[layer]``: float32 [slots, heads] for int8 keys and
    values each, else empty."""

    def __init__(
        self,
        layers: int,
        kv: KVShape,
        pages: int,
        page_size: int,
        dtype: Any,
        device: Any,
    ) -> None:
        """Allocate the pool. ``device``: device of the tensors, or ``HOST`` for NumPy arrays.
        Raises MemoryError if the device has too little memory."""
        self.pages, self.page_size, self.shared = pages, page_size, kv.shared
        dtype = numpy_dtype(dtype)
        slots = pages * page_size + 1

        def pools(dim: int) -> list[Weight]:
            shape = (slots, kv.heads, dim)
            return [empty(shape, dtype, device) for _ in range(layers)]

        def scales() -> tuple[Weight, ...]:
            if dtype != INT8:
                return ()
            each = [empty((slots, kv.heads), FLOAT32, device) for _ in range(2 - kv.shared)]
            return each[0], each[-1]

        try:
            self.keys = pools(kv.key_dim)
            if kv.shared:
                self.values = [keys[..., : kv.value_dim] for keys in self.keys]
            else:
                self.values = pools(kv.value_dim)
            self.scales = [scales() for _ in range(layers)]
        except (RuntimeError, MemoryError) as error:  # out of memory on any device
            size = slots * token_bytes(kv, dtype) * layers
            raise MemoryError(
                f"a KV cache of {pages * page_size} tokens needs {size / 1e9:.2f} GB, which "
                f"{device} cannot give; lower max_total_tokens or mem_fraction_static."
            ) from error
        for pool in self.keys + self.values:
            pool[-1] = 0

    @property
    def capacity(self) -> int:
        """Number of tokens that the pool can hold."""
        return self.pages * self.page_size

    def copy(self, copies: TokenCopies) -> None:
        """Copy tokens within the pool. Raises ValueError for a slot outside ``[0, capacity)``."""
        both = np.array([copies.sources, copies.targets], dtype=np.int64)
        if both.size and (both.min() < 0 or both.max() >= self.capacity):
            raise ValueError(f"a token is copied from or to a slot outside [0, {self.capacity}).")
        memory = list(chain(self.keys, () if self.shared else self.values, *self.scales))
        if isinstance(self.keys[0], np.ndarray):
            for pool in memory:
                pool[both[1]] = pool[both[0]]
            return
        sources, targets = torch.from_numpy(both).to(self.keys[0].device)
        for pool in memory:
            plain = pool.view(torch.uint8) if pool.dtype.itemsize == 1 else pool
            plain.index_copy_(0, targets, plain.index_select(0, sources))


def empty(shape: tuple[int, ...], dtype: Any, device: Any) -> Weight:
    """Return a new array for ``HOST``, a tensor for any other device; contents are undefined."""
    if on_host(device):
        return np.empty(shape, dtype)
    return torch.empty(shape, dtype=torch_dtype(dtype), device=device)


def token_bytes(kv: KVShape, dtype: Any) -> int:
    """Return the bytes of keys, values and scales of one token in one layer."""
    dtype = numpy_dtype(dtype)
    scale = 4 if dtype == INT8 else 0  # bytes per head
    sizes = [kv.key_dim] if kv.shared else [kv.key_dim, kv.value_dim]
    found: int = kv.heads * sum(size * dtype.itemsize + scale for size in sizes)
    return found


def bytes_per_token(spec: ModelSpec, dtype: Any) -> int:
    """Return the bytes of keys and values of one token in all layers."""
    return spec.num_layers * token_bytes(spec.kv, dtype)


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of a device's memory by use. The room for the KV cache follows from them.

    Attributes:
        available: free memory before the weights are loaded.
        weights: an estimate before loading; on a GPU, measured after loading (``measured``).
        adapters: limit of the adapters that may be loaded later.
        scratch: estimate for passes, workspaces and graphs (``worker.scratch``).
    """

    available: int
    weights: int
    adapters: int = 0
    scratch: int = 0

    def room(self, share: float) -> int:
        """Return the bytes for KV if weights, adapters and KV may use ``share`` of the memory."""
        most = min(int(self.available * share), self.available - self.scratch)
        return most - self.weights - self.adapters

    def __str__(self) -> str:
        parts = {"weights": self.weights, "adapters": self.adapters,
                 "passes and graphs": self.scratch}  # fmt: skip
        return ", ".join(f"{size / 1e9:.2f} GB of {name}" for name, size in parts.items() if size)


def measured(use: MemoryUse, device: Any) -> MemoryUse:
    """Return ``use`` with the measured size of the loaded weights, after unused cached memory is
    freed. On a CPU return ``use``, since other programs disturb a measurement."""
    if device.type != "cuda":
        return use
    gc.collect()
    torch.cuda.empty_cache()
    found = replace(use, weights=max(0, use.available - available_memory(device)))
    log.info("memory: %s of %.2f GB that were free", found, use.available / 1e9)
    return found


def pool_pages(
    memory: MemoryConfig,
    token_bytes: int,
    use: MemoryUse,
    context_length: int,
    device: Any,
) -> int:
    """Return the pages of the pool: of ``max_total_tokens`` if set, else of the free memory share.

    Raises MemoryError if not even one page fits, or if ``max_total_tokens`` does not fit.
    """
    size, free = memory.page_size, f"{use.available / 1e9:.2f} GB"
    if use.weights > use.available:
        raise MemoryError(
            f"the weights need {use.weights / 1e9:.2f} GB and {device} has {free} free; use "
            "--quantization, a smaller model, or a larger machine."
        )
    if memory.max_total_tokens:
        pages = memory.max_total_tokens // size
        if pages == 0:
            raise MemoryError(
                f"max_total_tokens is {memory.max_total_tokens}, less than one page of {size} "
                f"tokens; raise it or lower page_size."
            )
        if pages * size * token_bytes > use.room(1.0):
            raise MemoryError(
                f"max_total_tokens is {memory.max_total_tokens}, whose KV cache needs "
                f"{pages * size * token_bytes / 1e9:.2f} GB beside {use}; {device} has {free} "
                "free. Lower it."
            )
        return pages
    on_cpu = device.type == "cpu"
    share = memory.mem_fraction_static or (0.3 if on_cpu else 0.85)
    tokens = use.room(share) // token_bytes
    if on_cpu:
        tokens = min(tokens, CPU_CONTEXTS * context_length)
    if tokens < size:
        smaller = "" if on_cpu else ", lower cuda_graph_max_bs or chunked_prefill_size"
        raise MemoryError(
            f"{share:.0%} of the {free} free on {device} leave no room for a KV cache beside "
            f"{use}; raise mem_fraction_static, set max_total_tokens{smaller}."
        )
    return tokens // size


def available_memory(device: Any) -> int:
    """Return the free bytes of a device; on a CPU, at most the limit of the control group."""
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
