"""The used part of FlashInfer, by definition and on any device. Every call is checked.

Wrappers with static buffers read them when they run, as captured kernels do. Log-sum-exps are to
base 2, as FlashInfer's are.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PROCESSORS = 4  # multiprocessors of the GPU that plans are made for
# Calls in order: "decode", "captured", "prefill", "level" (not causal) or "merge".
calls: list[str] = []


class _Wrapper:
    """Rows of pages, and a run over them in float64."""

    offsets: Tensor
    pages: Tensor
    last: Tensor

    def _init(self, workspace: Tensor, layout: str, backend: str, graph: bool) -> None:
        assert workspace.dtype == torch.uint8
        assert layout == "NHD"
        assert backend in ("fa2", "fa3")
        self.backend, self.graph = backend, graph
        self.workspace, self.planned = workspace, False

    def _check(self, offsets: Tensor, pages: Tensor, last: Tensor) -> None:
        assert offsets.device.type == last.device.type == "cpu", "plan would wait for the device"
        assert offsets.dtype == pages.dtype == last.dtype == torch.int32
        assert len(offsets) == len(last) + 1
        assert int(offsets[-1]) == len(pages)
        assert bool((offsets.diff() > 0).all()), "every row has a key"

    def _check_room(
        self, counts: list[int], pages: Tensor, window_left: int, captured: bool
    ) -> None:
        """The workspace holds what the plan puts there, as ``PrefillPlan`` counts it."""
        need = parts_bytes(
            self.heads, self.kv_heads, self.dim, self.page_size, counts, pages.diff().tolist(),
            captured, window_left,
        )  # fmt: skip
        assert need <= self.workspace.numel(), "Buffer overflow when allocating memory"

    def _plan(
        self, heads: tuple[int, int, int, int], window_left: int, soft_cap: float | None,
        sm_scale: float, dtypes: tuple[torch.dtype, torch.dtype], causal: bool,
    ) -> None:  # fmt: skip
        self.heads, self.kv_heads, self.dim, self.page_size = heads
        self.window_left, self.cap, self.sm_scale = window_left, soft_cap or 0.0, sm_scale
        self.dtypes, self.causal, self.planned = dtypes, causal, True

    def reset_workspace_buffer(self, workspace: Tensor, schedule: Tensor) -> None:
        self.workspace, self.schedule = workspace, schedule

    def _run(
        self, q: Tensor, pools: tuple[Tensor, Tensor], queries: list[int], q_scale: float,
        out: Tensor | None, return_lse: bool,
    ) -> Any:  # fmt: skip
        assert self.planned
        assert (q.dtype, pools[0].dtype) == self.dtypes
        assert q.shape[0] == queries[-1]
        assert tuple(q.shape[1:]) == (self.heads, self.dim)
        assert pools[0].shape[1:] == (self.page_size, self.kv_heads, self.dim)
        offsets, pages = self.offsets.tolist(), self.pages
        y = torch.empty(q.shape, dtype=torch.float64)
        lse = torch.empty(q.shape[:2], dtype=torch.float64)
        for row, last in enumerate(self.last.tolist()):
            table = pages[offsets[row] : offsets[row + 1]].tolist()
            k, v = (_gather(pool, table, last) for pool in pools)
            at = slice(queries[row], queries[row + 1])
            y[at], lse[at] = self._row(q[at].double().cpu(), k, v, self.sm_scale * q_scale)
        result = torch.empty(q.shape, dtype=q.dtype, device=q.device) if out is None else out
        assert result.is_contiguous()
        result.copy_(y)
        return (result, lse.float().to(q.device)) if return_lse else result

    def _row(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        n, length, group = q.shape[0], k.shape[0], self.heads // self.kv_heads
        k, v = (x.repeat_interleave(group, 1).transpose(0, 1) for x in (k, v))
        scores = torch.einsum("nhd,hld->hnl", q, k) * scale
        if self.cap:
            scores = self.cap * torch.tanh(scores / self.cap)
        place = torch.arange(length - n, length).unsqueeze(1)
        key = torch.arange(length)
        if self.causal:
            scores = scores.masked_fill(key > place, -torch.inf)
        if self.window_left >= 0:
            scores = scores.masked_fill(key < place - self.window_left, -torch.inf)
        y = torch.einsum("hnl,hld->nhd", scores.softmax(-1), v)
        return y, scores.logsumexp(-1).transpose(0, 1) / torch.log(torch.tensor(2.0))


class BatchDecodeWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", use_cuda_graph: bool = False,
        use_tensor_cores: bool = False, paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None, backend: str = "auto",
    ) -> None:  # fmt: skip
        self._init(float_workspace_buffer, kv_layout, backend, use_cuda_graph)
        self.use_tensor_cores = use_tensor_cores
        if use_cuda_graph:
            assert paged_kv_indptr_buffer is not None
            assert paged_kv_indices_buffer is not None
            assert paged_kv_last_page_len_buffer is not None
            self.offsets, self.pages = paged_kv_indptr_buffer, paged_kv_indices_buffer
            self.last = paged_kv_last_page_len_buffer
            assert len(self.offsets) == len(self.last) + 1

    def plan(
        self, indptr: Tensor, indices: Tensor, last_page_len: Tensor, num_qo_heads: int,
        num_kv_heads: int, head_dim: int, page_size: int, *, window_left: int = -1,
        logits_soft_cap: float | None = None, q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype = torch.float16, sm_scale: float | None = None,
    ) -> None:  # fmt: skip
        self._check(indptr, indices, last_page_len)
        if self.graph:
            assert len(last_page_len) == len(self.last), "the size of a captured batch is fixed"
            self.offsets.copy_(indptr)
            self.last.copy_(last_page_len)
            self.pages[: len(indices)].copy_(indices)
        else:
            self.offsets, self.pages, self.last = indptr, indices, last_page_len
        # The kernels without tensor cores are for groups below 4 (docs of FlashInfer).
        assert self.use_tensor_cores == (num_qo_heads // num_kv_heads >= 4)
        assert sm_scale is not None
        self._plan(
            (num_qo_heads, num_kv_heads, head_dim, page_size), window_left, logits_soft_cap,
            sm_scale, (q_data_type, kv_data_type), False,
        )  # fmt: skip
        if self.use_tensor_cores:
            rows = [1] * len(last_page_len)
            self._check_room(rows, indptr, window_left, self.graph)

    def run(
        self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, q_scale: float = 1.0,
        out: Tensor | None = None, return_lse: bool = False,
    ) -> Any:  # fmt: skip
        assert self.backend == "fa2"
        calls.append("captured" if self.graph else "decode")
        queries = list(range(len(self.last) + 1))
        return self._run(q, paged_kv_cache, queries, q_scale, out, return_lse)


class BatchPrefillWithPagedKVCacheWrapper(_Wrapper):
    def __init__(
        self, float_workspace_buffer: Tensor, kv_layout: str = "NHD", *, backend: str = "auto"
    ) -> None:
        self._init(float_workspace_buffer, kv_layout, backend, False)

    def plan(
        self, qo_indptr: Tensor, paged_kv_indptr: Tensor, paged_kv_indices: Tensor,
        paged_kv_last_page_len: Tensor, num_qo_heads: int, num_kv_heads: int, head_dim_qk: int,
        page_size: int, *, causal: bool = False, sm_scale: float | None = None,
        window_left: int = -1, logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16, kv_data_type: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        self._check(paged_kv_indptr, paged_kv_indices, paged_kv_last_page_len)
        assert qo_indptr.device.type == "cpu"
        self.offsets, self.pages = paged_kv_indptr, paged_kv_indices
        self.last, self.queries = paged_kv_last_page_len, qo_indptr
        assert sm_scale is not None
        assert kv_data_type is not None
        self._plan(
            (num_qo_heads, num_kv_heads, head_dim_qk, page_size), window_left, logits_soft_cap,
            sm_scale, (q_data_type, kv_data_type), causal,
        )  # fmt: skip
        if self.backend == "fa2":  # the others hold no partial results
            self._check_room(qo_indptr.diff().tolist(), paged_kv_indptr, window_left, False)

    def run(
        self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor], *, q_scale: float = 1.0,
        out: Tensor | None = None, return_lse: bool = False,
    ) -> Any:  # fmt: skip
        assert self.backend == "fa2" or self.causal
        calls.append(("prefill" if self.causal else "level") + "-fa3" * (self.backend == "fa3"))
        queries = self.queries.tolist()
        return self._run(q, paged_kv_cache, queries, q_scale, out, return_lse)


def merge_state_in_place(v: Tensor, s: Tensor, v_other: Tensor, s_other: Tensor) -> None:
    calls.append("merge")
    assert v.is_contiguous()
    assert s.is_contiguous()
    assert v.shape == v_other.shape
    assert s.shape == s_other.shape
    most = torch.maximum(s, s_other)
    mine, other = torch.exp2(s - most), torch.exp2(s_other - most)
    share = (other / (mine + other)).unsqueeze(-1)
    v.copy_(v.double() * (1 - share.double()) + v_other.double() * share.double())
    s.copy_(most + torch.log2(mine + other))


def parts_bytes(
    heads: int, kv_heads: int, dim: int, page_size: int, counts: list[int], pages: list[int],
    captured: bool, window_left: int = -1, processors: int | None = None,
) -> int:  # fmt: skip
    """Bytes of partial results of a plan of FlashAttention-2's prefill kernels: the search for the
    size of a chunk of keys, done by trying every size. ``pages``: of each row's keys."""
    group = heads // kv_heads
    packed = [count * group for count in counts]
    longest = (sum(counts) - len(counts) + 1) * group if captured else sum(packed) // len(packed)
    tile = (128 if dim < 256 else 64) if longest > 64 else 64 if longest > 16 else 16
    most = 2 * (PROCESSORS if processors is None else processors) // kv_heads
    if window_left >= 0:
        pages = [min(n, -(-(window_left + tile) // page_size)) for n in pages]
    tiles = [-(-n // tile) for n in packed]
    longest = max([1, *pages])
    for chunk in range(max(128 // page_size, 1), longest):
        blocks = sum(n * -(-max(keys, 1) // chunk) for n, keys in zip(tiles, pages))
        if blocks <= most:
            break
    else:
        blocks = 0  # nothing is split
    if captured:
        blocks = max(most, -(-sum(packed) // tile) + len(counts) - 1)
    return heads * blocks * tile * (dim + 1) * 4


def _gather(pool: Tensor, table: list[int], last: int) -> Tensor:
    """Keys of a table, float64 [length, kv_heads, dim]; a page behind the last is in the storage,
    as far as its first slot."""
    size, per = pool.shape[1], pool.stride(1)
    length = (len(table) - 1) * size + last
    slots = torch.tensor([table[p // size] * size + p % size for p in range(length)])
    total = pool.untyped_storage().nbytes() // pool.element_size() // per
    flat = pool.as_strided((total, *pool.shape[2:]), (per, *pool.stride()[2:]))
    return flat[slots.to(pool.device)].double().cpu()
