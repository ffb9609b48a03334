"""Attention by the kernels of ``sgl_kernel.triton``, on an NVIDIA GPU.

    rows with one new token     decode, with keys split into chunks for programs of equal work;
                                keys of a shared prefix are read once for all its rows
    other rows                  extend, by tiles of queries

A pass is planned on the host and sent in one copy. Decode passes can be captured (``frame``). A
captured pass reads shared keys per row, because the launches depend on which rows share keys.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sgl_kernel.triton import append as appending
from sgl_kernel.triton import attention as kernels
from sglang.srt.attention.attention_protocol import (
    Attention,
    Heads,
    Int32Array,
    KVTarget,
    Layout,
)
from sglang.srt.attention.native_attention import as_bytes, narrow
from sglang.srt.attention.shared_prefix import groups
from sglang.srt.attention.slots import subset, written
from sglang.srt.parallel.staging import aligned_offsets, send_all, send_into
from torch import Tensor

# Minimum number of shared keys for which reading them once is worth a second softmax.
COMMON = 128
# Number of multiprocessors assumed without a GPU, in Triton's interpreter.
PROCESSORS = 4


@dataclass(frozen=True)
class Decode:
    """Arguments of ``kernels.decode``.

    Attributes:
        at: flat indices of the rows' queries, int64 [R]; None if all rows of the pass decode.
        own: work for keys after shared prefixes, and for these; None if no rows share keys.
    """

    at: Tensor | None
    tables: Tensor
    lengths: Tensor
    work: Any
    own: tuple[Any, Any] | None


@dataclass(frozen=True)
class Extend:
    """Arguments of ``kernels.extend``. ``tiles`` omits the decode rows."""

    tables: Tensor
    starts: Tensor
    firsts: Tensor
    tiles: Tensor
    block: int


class TritonAttention:
    """Implements ``attention.attention_protocol.Capturable`` and ``Writable``.

    ``key_pools[i]`` and ``value_pools[i]`` are [slots, kv_heads, head_dim] of layer ``i``.
    ``windows``: windows of the layers (0: none). ``heads``: number of query heads.
    ``disabled``: kernels that are not used, of "append", "decode" and "cascade"
    (``--disable-fused-kernels``).
    """

    def __init__(
        self,
        key_pools: Sequence[Tensor],
        value_pools: Sequence[Tensor],
        page_size: int,
        windows: Sequence[int],
        heads: int,
        disabled: Collection[str] = (),
    ) -> None:
        self.append = stored if "append" in disabled else appending.append
        self.decodes = "decode" not in disabled
        self.key_pools, self.value_pools = list(key_pools), list(value_pools)
        self.page_size, self.device = page_size, key_pools[0].device
        self.kv_heads, self.head_dim = key_pools[0].shape[1:]
        self.group = heads // self.kv_heads
        # A window cannot be combined with shared prefixes.
        self.shares = 0 in windows and "cascade" not in disabled
        self.processors = PROCESSORS
        if self.device.type == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            self.processors = properties.multi_processor_count
        self.pages: Tensor
        self.slots: Tensor
        self.decode: Decode | None = None
        self.extend: Extend | None = None
        self._static: tuple[Tensor, Tensor] | None = None

    def plan(self, layout: Layout) -> None:
        one = (layout.counts == 1) & self.decodes
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
                "tiles": kernels.plan_tiles(counts, self.group, block),
            }  # fmt: skip
        sent = send_all(arrays, self.device)
        self.pages, self.slots = sent["pages"], sent["slots"]
        self.decode = self.extend = None
        if len(rows):
            self.decode = _decode(sent, numbers, whole=len(rows) == len(one))
        if "tables" in sent:
            self.extend = Extend(
                sent["tables"], sent["starts"], sent["firsts"], sent["tiles"],
                numbers["block"],
            )  # fmt: skip

    def _plan_decode(
        self, layout: Layout, arrays: dict[str, Int32Array], numbers: dict[str, int]
    ) -> None:
        """Add the plan of decode rows to ``arrays`` and ``numbers``. ``layout``: decode rows."""
        lengths = layout.starts + 1
        arrays |= {"decode_tables": layout.tables, "lengths": lengths}
        _add("work", self.work(lengths), arrays, numbers)
        found = groups(layout, self.page_size, COMMON) if self.shares and len(lengths) > 1 else []
        if not found:
            return
        plan = kernels.plan_shared(
            found, layout.tables, self.group, self.head_dim, self.kv_heads, self.processors
        )
        lows = np.zeros_like(lengths)
        for rows, length in found:
            lows[rows] = length
        _add("own", self.work(lengths, lows=lows, extra=plan["splits"]), arrays, numbers)
        _add("shared", plan, arrays, numbers)

    @property
    def programs(self) -> int:
        """Number of programs per KV head among which the decode rows' keys are split."""
        return int(kernels.fair_programs(self.kv_heads, self.processors))

    def work(self, lengths: Int32Array, **options: Any) -> dict[str, Any]:
        """Return ``kernels.plan_work`` for decode rows with ``lengths`` keys, int32 [R]."""
        keys = int(lengths.sum() - options.get("lows", lengths[:0]).sum())
        chunk = kernels.choose_chunk(keys, self.programs)
        plan: dict[str, Any] = kernels.plan_work(lengths, chunk, **options)
        return plan

    def attend(self, heads: Heads, q: Tensor, k: Tensor, v: Tensor | None) -> Tensor:
        """Write the layer's pools at the planned slots, then compute attention over the pools."""
        assert v is not None  # ``backend_choice`` refuses shared pools
        self.append(k, v, *self.target(heads))
        return self.read(heads, q)

    def target(self, heads: Heads) -> KVTarget:
        """See ``attention.attention_protocol.Writable``."""
        return KVTarget(self.key_pools[heads.index], self.value_pools[heads.index], self.slots)

    def read(self, heads: Heads, q: Tensor) -> Tensor:
        """See ``attention.attention_protocol.Writable``."""
        keys, values = self.key_pools[heads.index], self.value_pools[heads.index]
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
        work, shared = decode.work, None
        if decode.own is not None and not heads.window:
            work, shared = decode.own
        part = kernels.decode(
            rows, keys, values, self.pages, decode.tables, decode.lengths, work,
            window=heads.window, shared=shared, out=part, **common,
        )  # fmt: skip
        if decode.at is not None:
            out.index_copy_(0, decode.at, part)
        return out.flatten(1)

    def frame(self, rows: int, pages: int, longest: int) -> Attention:
        """See ``attention.attention_protocol.Capturable``."""
        if self._static is None:
            sizes = (_firsts(rows, self.programs)[-1], pages)
            plan, entries = (
                torch.zeros(size, dtype=torch.int32, device=self.device) for size in sizes
            )
            self._static = plan, entries
        return _TritonFrame(self, rows, *self._static)


class _TritonFrame:
    """Captured pass of decode rows. Implements ``attention_protocol.Resident``. ``static`` holds
    slots, lengths, offsets of tables and work; ``entries`` holds page tables."""

    def __init__(
        self, attention: TritonAttention, rows: int, static: Tensor, entries: Tensor
    ) -> None:
        self.attention, self.rows, self.static, self.entries = attention, rows, static, entries
        self.firsts, self.room = _firsts(rows, attention.programs), rows + attention.programs
        slots, lengths, tables, parts, items, _ = self.firsts
        self.slots, self.lengths = static[slots:][:rows], static[lengths:][:rows]
        self.tables = static[tables:][:rows]
        self.work = kernels.Work(
            static[items:][: 4 * self.room].view(-1, 4), static[parts:][: rows + 1], self.room
        )

    def plan(self, layout: Layout) -> None:
        send_into(layout.pages, self.entries)
        slots = written(layout, self.attention.page_size)
        self._send(slots, layout.starts + 1, layout.tables[:-1])

    def plan_resident(self, layout: Layout, firsts: Int32Array, padding: int) -> None:
        """See ``attention.attention_protocol.Resident``."""
        size = self.attention.page_size
        more = np.zeros(self.rows - len(firsts), dtype=np.int32)
        self._send(
            np.concatenate([written(layout, size), more + padding * size]),
            np.concatenate([layout.starts + 1, more + 1]),
            np.concatenate([firsts, more]),
        )

    def _send(self, slots: Int32Array, lengths: Int32Array, tables: Int32Array) -> None:
        work = self.attention.work(lengths, room=self.room)
        packed = np.zeros(self.firsts[-1], dtype=np.int32)
        parts = (slots, lengths, tables, work["firsts"], work["items"].ravel())
        for first, part in zip(self.firsts, parts):
            packed[first : first + len(part)] = part
        send_into(packed, self.static)

    def attend(self, heads: Heads, q: Tensor, k: Tensor, v: Tensor | None) -> Tensor:
        assert v is not None
        self.attention.append(k, v, *self.target(heads))
        return self.read(heads, q)

    def target(self, heads: Heads) -> KVTarget:
        attention = self.attention
        return KVTarget(
            attention.key_pools[heads.index], attention.value_pools[heads.index], self.slots
        )

    def read(self, heads: Heads, q: Tensor) -> Tensor:
        keys, values, _ = self.target(heads)
        out: Tensor = kernels.decode(
            q, keys, values, self.entries, self.tables, self.lengths, self.work, scale=heads.scale,
            page_size=self.attention.page_size, window=heads.window, soft_cap=heads.soft_cap,
            sinks=heads.sinks,
        )  # fmt: skip
        return out.flatten(1)


def _firsts(rows: int, programs: int) -> list[int]:
    """Return the offsets of slots, lengths, tables, parts and items in the buffer of a captured
    pass, and the buffer's size, in int32 elements."""
    return aligned_offsets([rows, rows, rows, rows + 1, 4 * (rows + programs)], unit=4)


def _add(
    name: str, plan: dict[str, Any], arrays: dict[str, Int32Array], numbers: dict[str, int]
) -> None:
    """Add a plan's fields to ``arrays`` or ``numbers``, under the names ``name`` + "_" + field.
    ``arrays`` are sent to the device."""
    for field, value in plan.items():
        if isinstance(value, np.ndarray):
            arrays[f"{name}_{field}"] = value
        else:
            numbers[f"{name}_{field}"] = value


def _fields(name: str, sent: dict[str, Tensor], numbers: dict[str, int]) -> dict[str, Any]:
    """Return the fields that ``_add`` added for ``name``, with arrays on the device."""
    found = {**sent, **numbers}
    return {key[len(name) + 1 :]: found[key] for key in found if key.startswith(f"{name}_")}


def stored(k: Tensor, v: Tensor, keys: Tensor, values: Tensor, slots: Tensor) -> None:
    """Store new keys and values as ``append.append`` does, by torch's operations."""
    for pool, new in ((as_bytes(keys), k), (as_bytes(values), v)):
        pool.index_copy_(0, slots.long(), narrow(new, pool))


def _decode(sent: dict[str, Tensor], numbers: dict[str, int], whole: bool) -> Decode:
    own = None
    if "own_items" in sent:
        own = (
            kernels.Work(**_fields("own", sent, numbers)),
            kernels.Shared(**_fields("shared", sent, numbers)),
        )
    at = None if whole else sent["at"].long()
    work = kernels.Work(**_fields("work", sent, numbers))
    return Decode(at, sent["decode_tables"], sent["lengths"], work, own)
