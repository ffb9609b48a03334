"""Attention by FlashInfer (Ye et al. 2024), on NVIDIA GPUs since Ampere.

    every row has one new token   FlashInfer's decode kernels; if rows share a prefix, two levels:
                                  the shared keys once per group, then each row's other keys
    otherwise                     FlashInfer's prefill kernels over all rows

The kernels are those of FlashAttention-2 (``backend="fa2"``), which compile in minutes; newer ones
take much longer. With ``fa3``, prefill uses the kernels of FlashAttention-3 (Shah et al. 2024) for
compute capability 9.0. The two levels are two wrappers, because FlashInfer's own cascade does not
let the caller choose its kernels.

A wrapper is planned for a *kind* of layer (window, soft cap, heads). The first pass collects the
kinds; later passes plan them at their start. The constructor imports the package, because the
import writes a cache directory."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from sglang.srt.attention.attention_protocol import (
    Attention,
    Heads,
    Int32Array,
    KVTarget,
    Layout,
)
from sglang.srt.attention.flashinfer_modules import prompt_spec, quick_plans
from sglang.srt.attention.shared_prefix import groups
from sglang.srt.attention.slots import tables_of, written
from sglang.srt.parallel.staging import send, send_into
from torch import Tensor

# Minimum number of shared keys for which reading them once is worth a second softmax.
COMMON = 128
# Minimum number of query heads per key head for which decoding is faster on tensor cores.
TENSOR_CORES = 4
# Bytes of the schedule of a captured pass.
SCHEDULE = 2 << 20
# Number of multiprocessors assumed without a GPU.
PROCESSORS = 4
# Thread blocks per multiprocessor: of the prefill kernels, and the maximum of the decode kernels.
PREFILL_BLOCKS, DECODE_BLOCKS = 2, 32


class WrapperKind(NamedTuple):
    window: int
    soft_cap: float
    heads: int


def kind_of(heads: Heads) -> WrapperKind:
    return WrapperKind(heads.window, heads.soft_cap, heads.num_heads)


def processors_of(device: torch.device) -> int:
    """Return the number of multiprocessors of a GPU, ``PROCESSORS`` for other devices."""
    if device.type != "cuda":
        return PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def fa3_compiled(head_dim: int, dtype: torch.dtype, windows: Sequence[int]) -> bool:
    """Return True if the FlashAttention-3 kernels of layers without a soft cap are installed, or
    were compiled by an earlier start."""
    kinds = {window > 0 for window in windows}
    return all(prompt_spec("fa3", dtype, head_dim, window).is_compiled for window in kinds)


def query_tile(rows: int, head_dim: int) -> int:
    """Return the number of queries that a thread block of the prefill kernels computes. ``rows``:
    queries per request and key head."""
    if rows > 64 and head_dim < 256:
        return 128
    return 64 if rows > 16 else 16


def workspace_bytes(heads: int, kv_heads: int, head_dim: int, rows: int, processors: int) -> int:
    """Return the largest number of bytes that FlashInfer's plans need for partial results: float32
    outputs and their log-sum-exps.

    ``rows``: rows of the largest captured pass, 0 without captures. A captured pass is always
    split over keys, so every tile of queries has partial results. Other passes are split only if
    all parts run on the GPU at once. The formula follows scheduler.cuh of flashinfer 0.6.8.post1
    (``PrefillPlan``, ``DecodePlan``)."""
    group = heads // kv_heads
    at_once = PREFILL_BLOCKS * processors // kv_heads
    queries = at_once * query_tile(1 << 20, head_dim)
    queries = max(queries, DECODE_BLOCKS * processors // kv_heads)
    if rows:
        tile = query_tile(group, head_dim)
        queries = max(queries, tile * max(at_once, -(-rows * group // tile) + rows - 1))
    parts = heads * queries
    return -(-parts * head_dim * 4 // 16) * 16 + -(-parts * 4 // 16) * 16


class PlannedWrapper:
    """A wrapper of FlashInfer. Its plan fills pinned memory and queues a copy to the GPU, so the
    next plan waits for that copy, which ends no later than the previous pass."""

    def __init__(self, wrapper: Any, on_gpu: bool) -> None:
        self.wrapper, self.on_gpu = wrapper, on_gpu
        self._copied: torch.cuda.Event | None = None

    def plan(self, *arguments: Any, **options: Any) -> None:
        if self._copied is not None:
            self._copied.synchronize()
        self.wrapper.plan(*arguments, **options)
        if self.on_gpu:
            self._copied = torch.cuda.Event()
            self._copied.record()


@dataclass(frozen=True)
class Levels:
    """Rows reordered by group of shared prefix; rows without a group come last.

    ``order``: row indices, int64 [R] on the device. ``count``: number of rows in groups. ``own``:
    offsets and device pages of each row's keys after the shared ones. ``shared``: the same of each
    group's shared keys. ``queries``: offsets of groups. ``last``: tokens in each last ``own`` page.
    """

    order: Tensor
    count: int
    own: tuple[Tensor, Tensor]
    shared: tuple[Tensor, Tensor]
    queries: Tensor
    last: Tensor


@dataclass(frozen=True)
class FlashInferPass:
    """Arguments of a pass for FlashInfer's plans: host tensors, but pages and slots on the GPU."""

    decode: bool
    queries: Tensor
    offsets: Tensor
    pages: Tensor
    last: Tensor
    slots: Tensor
    levels: Levels | None


class FlashInferAttention:
    """Implements ``attention.attention_protocol.Capturable`` and ``Writable``.

    ``key_pools[i]`` and ``value_pools[i]`` are [slots, kv_heads, head_dim] of layer ``i``.
    ``disabled``: with "cascade", shared prefixes are read per row. ``fa3``: see the module.
    """

    def __init__(
        self,
        key_pools: Sequence[Tensor],
        value_pools: Sequence[Tensor],
        page_size: int,
        windows: Sequence[int],
        heads: int,
        disabled: Collection[str] = (),
        fa3: bool = False,
    ) -> None:
        # FlashInfer's names of the kernels, by wrapper.
        self.kernels = {"prefill": "fa3" if fa3 else "fa2", "level": "fa2", "decode": "fa2"}
        self.library = quick_plans(importlib.import_module("flashinfer"))
        self.key_pools, self.value_pools = list(key_pools), list(value_pools)
        self.page_size, self.device = page_size, key_pools[0].device
        self.dtype, self.on_gpu = key_pools[0].dtype, self.device.type == "cuda"
        self.kv_heads, self.head_dim = key_pools[0].shape[1:]
        # The shared level has no window.
        self.shares = 0 in windows and "cascade" not in disabled
        self.heads, self.tensor_cores = heads, heads // self.kv_heads >= TENSOR_CORES
        self.workspace = self._workspace(0)
        self.paged = [
            (self._by_page(keys), self._by_page(values))
            for keys, values in zip(self.key_pools, self.value_pools)
        ]
        self.current: FlashInferPass
        self._wrappers: dict[tuple[WrapperKind, str], PlannedWrapper] = {}
        self._known: dict[WrapperKind, None] = {}
        self._ready: set[WrapperKind] = set()
        self._static: Static | None = None

    def _workspace(self, rows: int) -> Tensor:
        """Return a workspace for captured passes of up to ``rows`` rows and all other passes."""
        processors = processors_of(self.device)
        size = workspace_bytes(self.heads, self.kv_heads, self.head_dim, rows, processors)
        return torch.zeros(size, dtype=torch.uint8, device=self.device)

    def _by_page(self, pool: Tensor) -> Tensor:
        """Return a view [pages, page_size, kv_heads, head_dim]. The padding slot is after the last
        page; a captured pass reads it as the first slot of page number ``pages``."""
        slots = pool if self.page_size == 1 else pool[:-1]
        return slots.view(-1, self.page_size, *pool.shape[1:])

    def plan(self, layout: Layout) -> None:
        decode = bool((layout.counts == 1).all())
        found = []
        if decode and self.shares and len(layout.counts) > 1:
            found = groups(layout, self.page_size, COMMON)
        queries = np.zeros(len(layout.counts) + 1, dtype=np.int32)
        np.cumsum(layout.counts, out=queries[1:])
        offsets, pages = tables_of(layout, self.page_size)
        slots = send(written(layout, self.page_size).astype(np.int64), self.device)
        self.current = FlashInferPass(
            decode, self.host(queries), self.host(offsets), send(pages, self.device),
            self.host(last_of(layout, self.page_size)), slots,
            self._levels(layout, found) if found else None,
        )  # fmt: skip
        self._ready.clear()
        for kind in self._known:
            self._prepare(kind)

    def host(self, array: Int32Array) -> Tensor:
        tensor = torch.from_numpy(np.ascontiguousarray(array))
        return tensor.pin_memory() if self.on_gpu else tensor

    def _levels(self, layout: Layout, found: list[tuple[list[int], int]]) -> Levels:
        grouped = np.array([row for rows, _ in found for row in rows])
        rest = np.setdiff1d(np.arange(len(layout.counts)), grouped)
        order = np.concatenate([grouped, rest]).astype(np.int64)
        sizes = [len(rows) for rows, _ in found]
        shared = np.array([tokens // self.page_size for _, tokens in found], dtype=np.int32)
        skip = np.concatenate([np.repeat(shared, sizes), np.zeros(len(rest), dtype=np.int32)])
        rows = Layout(
            layout.starts[order], layout.counts[order], layout.tables[order], layout.pages,
            layout.positions[order],
        )  # fmt: skip
        offsets, pages = tables_of(rows, self.page_size, skip)
        common = [
            layout.pages[layout.tables[rows[0]] :][:count]
            for (rows, _), count in zip(found, shared)
        ]
        return Levels(
            send(order, self.device),
            len(grouped),
            (self.host(offsets), send(pages, self.device)),
            (self.host(_offsets(shared)), send(np.concatenate(common), self.device)),
            self.host(_offsets(np.array(sizes, dtype=np.int32))),
            self.host(last_of(rows, self.page_size)),
        )

    def _prepare(self, kind: WrapperKind) -> None:
        """Plan the wrappers that the current pass needs for ``kind``."""
        now = self.current
        self._known[kind] = None
        self._ready.add(kind)
        if not now.decode:
            self._wrapper(kind, "prefill").plan(
                now.queries, now.offsets, now.pages, now.last, *self.sizes(kind), causal=True,
                **self.options(kind),
            )  # fmt: skip
        elif now.levels is None or kind.window:
            self._wrapper(kind, "decode").plan(
                now.offsets, now.pages, now.last, *self.sizes(kind), **self.options(kind)
            )
        else:
            levels = now.levels
            self._wrapper(kind, "decode").plan(
                *levels.own, levels.last, *self.sizes(kind), **self.options(kind)
            )
            full = np.full(len(levels.queries) - 1, self.page_size, dtype=np.int32)
            self._wrapper(kind, "level").plan(
                levels.queries, *levels.shared, self.host(full), *self.sizes(kind), causal=False,
                **self.options(kind),
            )  # fmt: skip

    def sizes(self, kind: WrapperKind) -> tuple[int, int, int, int]:
        return kind.heads, self.kv_heads, self.head_dim, self.page_size

    def options(self, kind: WrapperKind) -> dict[str, Any]:
        # ``run`` gets the scale as q_scale, which FlashInfer multiplies by sm_scale.
        return {
            "window_left": kind.window - 1, "logits_soft_cap": kind.soft_cap or None,
            "sm_scale": 1.0, "q_data_type": self.dtype, "kv_data_type": self.dtype,
        }  # fmt: skip

    def _wrapper(self, kind: WrapperKind, which: str) -> PlannedWrapper:
        if (kind, which) not in self._wrappers:
            backend = self.kernels[which]
            wrapper = (
                self.library.BatchDecodeWithPagedKVCacheWrapper(
                    self.workspace, "NHD", use_tensor_cores=self.tensor_cores, backend=backend
                )
                if which == "decode"
                else self.library.BatchPrefillWithPagedKVCacheWrapper(
                    self.workspace, "NHD", backend=backend
                )
            )
            self._wrappers[kind, which] = PlannedWrapper(wrapper, self.on_gpu)
        return self._wrappers[kind, which]

    def attend(self, heads: Heads, q: Tensor, k: Tensor, v: Tensor | None) -> Tensor:
        """Write the layer's pools at the planned slots, then compute attention over the pools."""
        assert v is not None  # ``backend_choice`` refuses shared pools
        write(self.target(heads), k, v)
        return self.read(heads, q)

    def target(self, heads: Heads) -> KVTarget:
        """See ``attention.attention_protocol.Writable``."""
        return self.pools_of(heads, self.current.slots)

    def pools_of(self, heads: Heads, slots: Tensor) -> KVTarget:
        """Return the layer's pools with ``slots``, those of a pass's new tokens."""
        return KVTarget(self.key_pools[heads.index], self.value_pools[heads.index], slots)

    def read(self, heads: Heads, q: Tensor) -> Tensor:
        """See ``attention.attention_protocol.Writable``."""
        kind, now = kind_of(heads), self.current
        if kind not in self._ready:
            self._prepare(kind)
        pools, out = self.paged[heads.index], torch.empty(q.shape, dtype=q.dtype, device=q.device)
        if not now.decode or now.levels is None or kind.window:
            wrapper = self._wrapper(kind, "decode" if now.decode else "prefill").wrapper
            return _run(wrapper, q, pools, heads.scale, out).flatten(1)
        levels = now.levels
        rows = q.index_select(0, levels.order)
        own = self._wrapper(kind, "decode").wrapper
        y, weight = own.run(rows, pools, q_scale=heads.scale, return_lse=True)
        shared = self._wrapper(kind, "level").wrapper
        n = levels.count
        common = shared.run(rows[:n], pools, q_scale=heads.scale, return_lse=True)
        self.library.merge_state_in_place(y[:n], weight[:n], *common)
        return out.index_copy_(0, levels.order, y).flatten(1)

    def frame(self, rows: int, pages: int, longest: int) -> Attention:
        """See ``attention.attention_protocol.Capturable``."""
        if self._static is None:  # the first frame is the largest
            self._static = Static(rows, pages, self.device)
            self.workspace = self._workspace(rows)
        return _FlashInferFrame(self, rows, self._static)


class Static:
    """Device buffers of captured passes of up to ``rows`` rows."""

    def __init__(self, rows: int, pages: int, device: torch.device) -> None:
        self.slots = torch.zeros(rows, dtype=torch.int64, device=device)
        self.offsets = torch.zeros(rows + 1, dtype=torch.int32, device=device)
        self.pages = torch.zeros(pages, dtype=torch.int32, device=device)
        self.last = torch.ones(rows, dtype=torch.int32, device=device)
        self.schedules: dict[WrapperKind, Tensor] = {}

    def schedule(self, kind: WrapperKind) -> Tensor:
        """Return the buffer for plans of a kind. Frames share it, as only one runs at a time."""
        if kind not in self.schedules:
            self.schedules[kind] = torch.empty(
                SCHEDULE, dtype=torch.uint8, device=self.slots.device
            )
        return self.schedules[kind]


class _FlashInferFrame:
    """Captured pass of decode rows. Plans run outside the graph and fill its static buffers."""

    def __init__(self, attention: FlashInferAttention, rows: int, static: Static) -> None:
        self.attention, self.rows, self.static = attention, rows, static
        self.slots = static.slots[:rows]
        self._planned: dict[WrapperKind, PlannedWrapper] = {}
        self._arguments: tuple[Tensor, Tensor, Tensor]

    def plan(self, layout: Layout) -> None:
        size = self.attention.page_size
        offsets, pages = tables_of(layout, size)
        send_into(written(layout, size).astype(np.int64), self.slots)
        send_into(pages, self.static.pages)
        # FlashInfer copies these arguments into its buffers. ``static.pages`` is such a buffer.
        self._arguments = (
            self.attention.host(offsets), self.static.pages[: len(pages)],
            self.attention.host(last_of(layout, size)),
        )  # fmt: skip
        for kind in self._planned:
            self._plan(kind)

    def _plan(self, kind: WrapperKind) -> None:
        attention = self.attention
        self._planned[kind].plan(
            *self._arguments, *attention.sizes(kind), **attention.options(kind)
        )

    def attend(self, heads: Heads, q: Tensor, k: Tensor, v: Tensor | None) -> Tensor:
        assert v is not None
        write(self.target(heads), k, v)
        return self.read(heads, q)

    def target(self, heads: Heads) -> KVTarget:
        return self.attention.pools_of(heads, self.slots)

    def read(self, heads: Heads, q: Tensor) -> Tensor:
        kind = kind_of(heads)
        if kind not in self._planned:  # true only in the passes before the capture
            self._planned[kind] = self._wrapper(kind)
            self._plan(kind)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        wrapper, pools = self._planned[kind].wrapper, self.attention.paged[heads.index]
        return _run(wrapper, q, pools, heads.scale, out).flatten(1)

    def _wrapper(self, kind: WrapperKind) -> PlannedWrapper:
        attention, static = self.attention, self.static
        wrapper = attention.library.BatchDecodeWithPagedKVCacheWrapper(
            attention.workspace, "NHD", use_cuda_graph=True,
            use_tensor_cores=attention.tensor_cores,
            paged_kv_indptr_buffer=static.offsets[: self.rows + 1],
            paged_kv_indices_buffer=static.pages,
            paged_kv_last_page_len_buffer=static.last[: self.rows],
            backend="fa2",
        )  # fmt: skip
        wrapper.reset_workspace_buffer(attention.workspace, static.schedule(kind))
        return PlannedWrapper(wrapper, attention.on_gpu)


def write(target: KVTarget, k: Tensor, v: Tensor) -> None:
    """Store the new keys and values of a layer, [T, kv_heads, head_dim], in its pools."""
    target.keys.index_copy_(0, target.slots, k)
    target.values.index_copy_(0, target.slots, v)


def _run(
    wrapper: Any, q: Tensor, pools: tuple[Tensor, Tensor], scale: float, out: Tensor
) -> Tensor:
    wrapper.run(q, pools, q_scale=scale, out=out)
    return out


def last_of(layout: Layout, page_size: int) -> Int32Array:
    """Return the number of tokens in each row's last page, 1 to ``page_size``, int32 [R]."""
    last = (layout.starts + layout.counts - 1) % page_size + 1
    return last.astype(np.int32)


def _offsets(counts: Int32Array) -> Int32Array:
    out = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=out[1:])
    return out
