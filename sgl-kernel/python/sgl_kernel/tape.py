"""Tape: a forward pass recorded once as operations on buffers, run in one native call.

A buffer is float32 [tokens of a pass, width], known by its number. Models record themselves
(``record`` in ``srt/models``); the tape keeps alive what its operations point to.
"""

from __future__ import annotations

import weakref

import numpy as np
import torch
from torch import Tensor

from sgl_kernel.native import need
from sgl_kernel.packed import ACTIVATIONS, Packed, address
from sgl_kernel.paged import KV, Array, Fields, Heads, Pass, Rotary


class Tape:
    def __init__(self) -> None:
        native = need()
        self._tape = native.tape_new()
        self._widths: list[int] = []
        self._kept: list[object] = []
        self._last, self._chooses = -1, False
        # Not at exit: a thread may still be in ``run`` then, and memory goes with the process.
        weakref.finalize(self, native.tape_free, self._tape).atexit = False

    def buffer(self, width: int) -> int:
        self._widths.append(width)
        return int(need().tape_buffer(self._tape, width))

    def embed(self, table: Packed, scale: float = 1.0) -> int:
        """Rows of the table by token id; a new buffer."""
        out = self._out(self.buffer(table.k), table)
        code, n, k, group, _, data = table.fields
        need().tape_embed(self._tape, out, code, n, k, group, data, scale)
        return out

    def choose(self, x: int) -> int:
        """The tokens that ``run`` is asked for; what follows works on these alone."""
        out = self._out(self.buffer(self._widths[x]))
        need().tape_choose(self._tape, out, x)
        self._chooses = True
        return out

    def norm(self, x: int, gain: Tensor, eps: float) -> int:
        gain = gain.float().contiguous()
        out = self._out(self.buffer(self._widths[x]), gain)
        need().tape_norm(self._tape, out, x, gain.data_ptr(), eps)
        return out

    def linear(
        self,
        x: int,
        weight: Packed,
        *,
        into: int | None = None,
        add: bool = False,
        gain: Tensor | None = None,
        eps: float = 1e-6,
        bias: Tensor | None = None,
        act: str = "silu",
    ) -> int:
        """As ``packed.linear``; ``into`` names the buffer written, a new one otherwise."""
        if self._widths[x] != weight.k:
            raise ValueError(f"buffer {x} is {self._widths[x]} wide; the weight takes {weight.k}.")
        gain = None if gain is None else gain.float().contiguous()
        bias = None if bias is None else bias.float().contiguous()
        into = self.buffer(weight.outputs) if into is None else into
        out = self._out(into, weight, gain, bias)
        need().tape_linear(
            self._tape, out, x, *weight.fields, address(gain), eps, address(bias), add,
            ACTIVATIONS[act],
        )  # fmt: skip
        return out

    def append(self, qkv: int, heads: Heads, rotary: Rotary, kv: KV) -> None:
        """Rotates q and k in place, writes k and v to the pool."""
        fields = [heads.fields, rotary.fields, kv.fields]
        self._out(qkv, *fields)
        need().tape_append(self._tape, qkv, *(f.address for f in fields))

    def attend(self, qkv: int, heads: Heads, kv: KV, into: int | None = None) -> int:
        """As ``paged.attend``; ``into`` names the buffer written, a new one otherwise."""
        fields = [heads.fields, kv.fields]
        into = self.buffer(heads.q * heads.dim) if into is None else into
        out = self._out(into, *fields)
        need().tape_attend(self._tape, out, qkv, *(f.address for f in fields))
        return out

    def run(self, pass_: Pass, chosen: Array, threads: int = 1) -> Tensor:
        """The last buffer written [rows, width], a new tensor. ``chosen``: int32 indices of tokens,
        for a tape with ``choose``; other tapes give all rows. Raises MemoryError; ValueError for a
        tape without operations, or indices of another kind."""
        if self._last < 0:
            raise ValueError("the tape has no operations.")
        if chosen.dtype != np.int32 or not chosen.flags.c_contiguous:
            raise ValueError(f"chosen is {chosen.dtype}; contiguous int32 is needed.")
        rows = len(chosen) if self._chooses else pass_.tokens
        width = self._widths[self._last]
        out = torch.empty(rows, width)
        where = int(chosen.__array_interface__["data"][0])
        got = need().tape_run(
            self._tape, threads, pass_.address, where, len(chosen), out.data_ptr()
        )
        if got < 0:
            raise MemoryError(f"no memory for a pass of {pass_.tokens} tokens.")
        return out

    def _out(self, buffer: int, *kept: object) -> int:
        self._kept.extend(kept)
        self._last = buffer
        return buffer


__all__ = ["KV", "Fields", "Heads", "Pass", "Rotary", "Tape"]
