"""Attention by the kernels of ``sgl_kernel.triton``, on an NVIDIA GPU.

    rows with one new token     decode, their keys cut into parts; or, where rows begin with the
                                same keys, the cascade, which reads those once for all of them
    the others                  extend, by tiles of queries

A pass is planned on the host and sent in one copy. Decode passes can be captured (``frame``); a
captured pass never takes the cascade, whose launches depend on the keys that rows share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sgl_kernel.triton import append as appending
from sgl_kernel.triton import attention as kernels
from sglang.srt.attention.attention_protocol import Attention, Heads, Int32Array, Layout
from sglang.srt.attention.shared_prefix import groups
from sglang.srt.attention.slots import subset, written
from sglang.srt.parallel.staging import send_all, send_into
from torch import Tensor

# Keys that rows must have in common for reading them once to be worth a second softmax.
COMMON = 128
# Stands for the number of multiprocessors where there is no GPU, in the interpreter.
PROCESSORS = 4


@dataclass(frozen=True)
class Decode:
    """``at``: flat indices of the rows' queries, int64 [R]; None where they are all there is.

    The others are as for ``kernels.decode``; ``cascade`` where rows share a prefix.
    """

    at: Tensor | None
    tables: Tensor
    lengths: Tensor
    splits: int
    cascade: Cascade | None


@dataclass(frozen=True)
class Cascade:
    """Arguments of ``kernels.cascade``."""

    starts: Tensor
    firsts: Tensor
    tiles: Tensor
    block: int
    splits: int
    shared: Any


@dataclass(frozen=True)
class Extend:
    """Rows as for ``kernels.extend``; ``tiles`` has none for decode rows."""

    tables: Tensor
    starts: Tensor
    firsts: Tensor
    tiles: Tensor
    block: int


class TritonAttention:
    """Implements ``attention.attention_protocol.Capturable``.

    ``key_pools[i]`` and ``value_pools[i]`` are [slots, kv_heads, head_dim] of layer ``i``.
    ``windows`` are the windows that layers will ask for (0: none), ``heads`` the query heads.
    """

    def __init__(
        self,
        key_pools: Sequence[Tensor],
        value_pools: Sequence[Tensor],
        page_size: int,
        windows: Sequence[int],
        heads: int,
    ) -> None:
        self.key_pools, self.value_pools = list(key_pools), list(value_pools)
        self.page_size, self.device = page_size, key_pools[0].device
        self.kv_heads, self.head_dim = key_pools[0].shape[1:]
        self.group = heads // self.kv_heads
        self.shares = 0 in windows  # a window cannot be combined with the cascade
        self.processors = PROCESSORS
        if self.device.type == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            self.processors = properties.multi_processor_count
        self.pages: Tensor
        self.slots: Tensor
        self.decode: Decode | None = None
        self.extend: Extend | None = None
        self._static: Tensor | None = None

    def plan(self, layout: Layout) -> None:
        one = layout.counts == 1
        rows = np.flatnonzero(one)
        arrays: dict[str, Int32Array] = {
            "pages": layout.pages,
            "slots": written(layout, self.page_size),
        }
        firsts = np.zeros(len(layout.counts) + 1, dtype=np.int32)
        np.cumsum(layout.counts, out=firsts[1:])
        numbers: dict[str, int] = {}
        if len(rows):
            arrays["at"] = firsts[rows]
            self._plan_decode(subset(layout, rows), arrays, numbers)
        if len(rows) < len(one):
            counts = np.where(one, 0, layout.counts).astype(np.int32)
            block = kernels.choose_block(self.group, self.head_dim, counts[~one])
            numbers["block"] = block
            arrays |= {
                "tables": layout.tables, "starts": layout.starts, "firsts": firsts,
                "tiles": kernels.plan_tiles(counts, self.group, block).ravel(),
            }  # fmt: skip
        sent = send_all(arrays, self.device)
        self.pages, self.slots = sent["pages"], sent["slots"]
        self.decode = self.extend = None
        if len(rows):
            self.decode = _decode(sent, numbers, whole=len(rows) == len(one))
        if "tables" in sent:
            self.extend = Extend(
                sent["tables"], sent["starts"], sent["firsts"], sent["tiles"].view(-1, 2),
                numbers["block"],
            )  # fmt: skip

    def _plan_decode(
        self, layout: Layout, arrays: dict[str, Int32Array], numbers: dict[str, int]
    ) -> None:
        """Adds the decode rows' part to what is sent; ``layout`` has these rows only."""
        lengths = layout.starts + 1
        arrays |= {"decode_tables": layout.tables, "lengths": lengths}
        rows, longest = len(lengths), int(lengths.max())
        numbers["splits"] = self._splits(rows, longest)
        found = groups(layout, self.page_size, COMMON) if self.shares and rows > 1 else []
        if not found:
            return
        plan = kernels.plan_shared(
            found, layout.counts, layout.tables, self.group, self.head_dim, self.kv_heads,
            self.processors,
        )  # fmt: skip
        own = lengths - plan["lows"]
        block = kernels.choose_block(self.group, self.head_dim, layout.counts)
        arrays |= {
            "own_starts": layout.starts,
            "own_firsts": np.arange(rows + 1, dtype=np.int32),
            "own_tiles": kernels.plan_tiles(layout.counts, self.group, block).ravel(),
        }
        numbers |= {"own_block": block, "own_splits": self._splits(rows, int(own.max()))}
        for name, value in plan.items():
            if isinstance(value, np.ndarray):
                arrays[f"shared_{name}"] = value.ravel()
            else:
                numbers[f"shared_{name}"] = value

    def _splits(self, rows: int, longest: int) -> int:
        return int(kernels.choose_splits(rows, self.kv_heads, longest, self.processors))

    def attend(self, heads: Heads, q: Tensor, k: Tensor, v: Tensor | None) -> Tensor:
        """Writes the layer's pools at the planned slots, then reads them."""
        assert v is not None  # ``choose`` sees to it
        keys, values = self.key_pools[heads.index], self.value_pools[heads.index]
        appending.append(k, v, keys, values, self.slots)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        common: dict[str, Any] = {
            "scale": heads.scale, "page_size": self.page_size, "soft_cap": heads.soft_cap,
            "sinks": heads.sinks,
        }  # fmt: skip
        if (extend := self.extend) is not None:
            kernels.extend(
                q, keys, values, self.pages, extend.tables, extend.starts, extend.firsts,
                extend.tiles, block=extend.block, window=heads.window, out=out, **common,
            )  # fmt: skip
        if (decode := self.decode) is None:
            return out.flatten(1)
        part = out if decode.at is None else None
        rows = q if decode.at is None else q.index_select(0, decode.at)
        if (own := decode.cascade) is not None and not heads.window:
            part = kernels.cascade(
                rows, keys, values, self.pages, decode.tables, own.starts, own.firsts, own.tiles,
                own.shared, block=own.block, splits=own.splits, out=part, **common,
            )  # fmt: skip
        else:
            part = kernels.decode(
                rows, keys, values, self.pages, decode.tables, decode.lengths,
                splits=decode.splits, window=heads.window, out=part, **common,
            )  # fmt: skip
        if decode.at is not None:
            out.index_copy_(0, decode.at, part)
        return out.flatten(1)

    def frame(self, rows: int, pages: int, longest: int) -> Attention:
        """See ``attention.attention_protocol.Capturable``."""
        if self._static is None:
            size = 3 * rows + 1 + pages
            self._static = torch.zeros(size, dtype=torch.int32, device=self.device)
        return _TritonFrame(self, rows, self._static, self._splits(rows, longest))


class _TritonFrame:
    """Decode rows whose plan lies in one static buffer: slots, tables, lengths, pages."""

    def __init__(self, attention: TritonAttention, rows: int, static: Tensor, splits: int) -> None:
        self.attention, self.rows, self.static, self.splits = attention, rows, static, splits
        self.slots, self.lengths, self.tables, self.pages = static.split(
            [rows, rows, rows + 1, len(static) - 3 * rows - 1]
        )

    def plan(self, layout: Layout) -> None:
        slots = written(layout, self.attention.page_size)
        parts = [slots, layout.starts + 1, layout.tables, layout.pages]
        send_into(np.concatenate(parts), self.static)

    def attend(self, heads: Heads, q: Tensor, k: Tensor, v: Tensor | None) -> Tensor:
        assert v is not None
        keys = self.attention.key_pools[heads.index]
        values = self.attention.value_pools[heads.index]
        appending.append(k, v, keys, values, self.slots)
        out: Tensor = kernels.decode(
            q, keys, values, self.pages, self.tables, self.lengths, scale=heads.scale,
            splits=self.splits, page_size=self.attention.page_size, window=heads.window,
            soft_cap=heads.soft_cap, sinks=heads.sinks,
        )  # fmt: skip
        return out.flatten(1)


def _decode(sent: dict[str, Tensor], numbers: dict[str, int], whole: bool) -> Decode:
    cascade = None
    if "own_starts" in sent:
        named = {name[7:]: sent[name] for name in sent if name.startswith("shared_")}
        named["tiles"] = named["tiles"].view(-1, 2)
        shared = kernels.Shared(
            **named, block=numbers["shared_block"], splits=numbers["shared_splits"]
        )
        cascade = Cascade(
            sent["own_starts"], sent["own_firsts"], sent["own_tiles"].view(-1, 2),
            numbers["own_block"], numbers["own_splits"], shared,
        )  # fmt: skip
    at = None if whole else sent["at"].long()
    return Decode(at, sent["decode_tables"], sent["lengths"], numbers["splits"], cascade)
