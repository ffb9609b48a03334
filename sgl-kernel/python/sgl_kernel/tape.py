"""Tape: a forward pass recorded once as operations on buffers, run in one native call.

A buffer is float32 [tokens of a pass, width], known by its number. Models record themselves
(``record`` in ``srt/models``); the tape keeps alive what its operations point to.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from sgl_kernel.arrays import AnyArray, address, floats, size
from sgl_kernel.experts import Experts
from sgl_kernel.fields import Fields
from sgl_kernel.lora import Adapted, Adapter
from sgl_kernel.meeting import Meeting
from sgl_kernel.native import need
from sgl_kernel.packed import ACTIVATIONS, Packed, Parts, around_product
from sgl_kernel.paged import KV, Array, Heads, Pass, Rotary

Groups: TypeAlias = tuple[Sequence[Adapter], Array]
Columns: TypeAlias = tuple[int, int]


class Tape:
    """A forward pass that is recorded once and runs in one native call.

    Methods but ``run`` record an operation. Buffers are float32 [tokens of the pass, width], named
    by the number that made them.
    """

    def __init__(self) -> None:
        native = need()
        self._tape = native.tape_new()
        self._widths: list[int] = []
        self._embedded = 0  # width of the embeddings
        self._kept: list[object] = []
        self._reordered: dict[tuple[int, bool], int] = {}
        self._last, self._chooses, self._adapts = -1, False, False
        # Not at exit: a thread may still be in ``run`` then, and memory goes with the process.
        weakref.finalize(self, native.tape_free, self._tape).atexit = False

    def buffer(self, width: int) -> int:
        """A new buffer float32 [tokens, width]; return its number."""
        self._widths.append(width)
        return int(need().tape_buffer(self._tape, width))

    def embed(self, table: Packed, scale: float = 1.0) -> int:
        """Embed the pass's token ids: rows of ``table`` times ``scale``, into a new buffer. Tokens
        in ``Pass.given`` take the pass's embeddings instead."""
        out = self._out(self.buffer(table.k), table)
        self._embedded = table.k
        need().tape_embed(self._tape, out, table.native.address, scale)
        return out

    def share(self, first: int) -> None:
        """Let the table of the last ``embed`` be a rank's share: its rows from ``first`` on. Other
        ids embed as zeros. Embeddings of the pass count only where ``first`` is 0."""
        need().tape_share(self._tape, first)

    def input(self, width: int) -> int:
        """Take the tokens' states from the pass, into a new buffer: for a tape that begins behind
        the first layer."""
        out = self._out(self.buffer(width))
        self._embedded = width
        need().tape_input(self._tape, out)
        return out

    def reduce(self, x: int, meeting: Meeting, into: int, add: bool) -> int:
        """``into``, which may be x: the sum of x over the ranks, or its old values and that sum.
        Every rank runs its tape over the same tokens."""
        if self._widths[x] != self._widths[into]:
            raise ValueError(
                f"buffers are {self._widths[x]} and {self._widths[into]} wide; sums need one."
            )
        out = self._out(into, meeting)
        need().tape_reduce(self._tape, out, x, meeting.address, add)
        return out

    def choose(self, x: int) -> int:
        """Copy the rows of x that ``chosen`` of ``run`` names into a new buffer, and return its
        number. Later operations work on such rows alone."""
        out = self._out(self.buffer(self._widths[x]))
        need().tape_choose(self._tape, out, x)
        self._chooses = True
        return out

    def norm(
        self,
        x: int,
        gain: AnyArray,
        eps: float,
        *,
        into: int | None = None,
        add: bool = False,
        bias: AnyArray | None = None,
        centred: bool = False,
        first: int = 0,
        to: int | None = None,
    ) -> int:
        """RMSNorm, or LayerNorm where ``centred``, written or added to ``into``, a new buffer by
        default. A ``gain`` shorter than x is wide is that of the columns from ``first`` on; their
        norm lies from column ``to`` on, by default the same."""
        gain, bias = floats(gain), None if bias is None else floats(bias)
        count, to = size(gain), first if to is None else to
        into = self.buffer(self._widths[x]) if into is None else into
        for buffer, begin in ((x, first), (into, to)):
            self._verify(buffer, (begin, 0), 1, count)
        out = self._out(into, gain, bias)
        need().tape_norm(
            self._tape, out, to, x, first, count, address(gain), eps, address(bias), centred, add
        )
        return out

    def activate(self, x: int, act: str) -> None:
        """Apply an activation in place."""
        need().tape_activate(self._tape, self._out(x), ACTIVATIONS[act])

    def place(self, x: int, table: AnyArray) -> None:
        """Add to each token the row of ``table`` [positions, width], float32, of its position.
        Before ``choose``."""
        table = floats(table)
        if self._chooses or table.shape[1] != self._widths[x]:
            raise ValueError(f"a table of width {table.shape[1]} cannot be added to buffer {x}.")
        need().tape_place(self._tape, self._out(x, table), address(table))

    def linear(
        self,
        x: int,
        weight: Packed,
        *,
        into: int | None = None,
        add: bool = False,
        gain: AnyArray | None = None,
        eps: float = 1e-6,
        bias: AnyArray | None = None,
        act: str = "silu",
        product: int = -1,
    ) -> int:
        """Apply ``packed.linear``. ``into`` is the buffer written, by default a new one;
        ``product`` is the adapters' name of the product."""
        if self._widths[x] != weight.k:
            raise ValueError(f"buffer {x} is {self._widths[x]} wide; the weight takes {weight.k}.")
        gain = None if gain is None else floats(gain)
        if weight.order is not None:
            x = self._reorder(x, weight.order)
            gain = None if gain is None else gain[weight.order]
        bias = None if bias is None else floats(bias)
        into = self.buffer(weight.outputs) if into is None else into
        out = self._out(into, weight, gain, bias)
        around = around_product(gain, eps, bias, add, act)
        need().tape_linear(self._tape, out, x, weight.native.address, around.address)
        if product >= 0:
            need().tape_adapt(self._tape, product)
            self._adapts = True
        return out

    def _reorder(self, x: int, order: AnyArray) -> int:
        """The columns of x in this order, until the next call."""
        key = self._widths[x], self._chooses
        if key not in self._reordered:
            self._reordered[key] = self.buffer(key[0])
        out = self._out(self._reordered[key], order)
        need().tape_reorder(self._tape, out, x, address(order))
        return out

    def each(
        self, x: int, parts: Parts, into: int, source: Columns = (0, 0), target: Columns = (0, 0)
    ) -> int:
        """Vectors ``target`` of ``into``: each part times its own of the vectors ``source`` of x.
        Columns are those of the first vector's beginning, and from one beginning to the next."""
        count = len(parts.weights)
        self._verify(x, source, count, parts.k)
        self._verify(into, target, count, parts.n)
        out = self._out(into, parts)
        need().tape_each(self._tape, out, *target, x, *source, count, address(parts.table))
        return out

    def turn(
        self, x: int, rotary: Rotary, count: int, into: int,
        source: Columns = (0, 0), target: Columns = (0, 0),
    ) -> int:  # fmt: skip
        """Vectors ``target`` of ``into``: ``count`` vectors ``source`` of x, ``rotary.turned``
        wide, rotated. Columns as of ``each``. Before ``choose``."""
        self._verify(x, source, count, rotary.turned)
        self._verify(into, target, count, rotary.turned)
        if self._chooses:
            raise ValueError("tokens are rotated by position, before any choice.")
        out, fields = self._out(into, rotary), rotary.fields
        self._kept.append(fields)
        need().tape_turn(self._tape, out, *target, x, *source, count, fields.address)
        return out

    def _verify(self, buffer: int, columns: Columns, count: int, width: int) -> None:
        """Raise ValueError where vectors do not lie in a buffer."""
        first, apart = columns
        has = self._widths[buffer]
        if first < 0 or apart < 0 or first + (count - 1) * apart + width > has:
            raise ValueError(
                f"buffer {buffer} is {has} wide; it has no {count} vectors of {width} from "
                f"column {first} on, {apart} apart."
            )

    def experts(
        self, x: int, layer: Experts, into: int, gain: AnyArray | None, eps: float, add: bool = True
    ) -> int:
        """``into += layer(norm(x))``; without ``add``, ``into = layer(norm(x))``."""
        widths = self._widths[x], self._widths[into]
        if widths != (layer.width, layer.width):
            raise ValueError(f"buffers are {widths} wide; the experts take {layer.width}.")
        gain = None if gain is None else floats(gain)
        out = self._out(into, layer, gain)
        need().tape_experts(self._tape, out, x, layer.address, address(gain), eps)
        if not add:
            need().tape_overwrite(self._tape)
        return out

    def append(self, qkv: int, heads: Heads, rotary: Rotary, kv: KV) -> None:
        """Rotate q and k in place, and write k and v to the pool, as ``paged.append``."""
        fields = [heads.fields, rotary.fields, kv.fields]
        self._out(qkv, *fields)
        need().tape_append(self._tape, qkv, *(f.address for f in fields))

    def attend(self, qkv: int, heads: Heads, kv: KV, into: int | None = None) -> int:
        """Attend as ``paged.attend``. ``into`` is the buffer written, by default a new one."""
        fields = [heads.fields, kv.fields]
        into = self.buffer(heads.q * heads.value) if into is None else into
        out = self._out(into, *fields)
        need().tape_attend(self._tape, out, qkv, *(f.address for f in fields))
        return out

    def run(
        self, pass_: Pass, chosen: Array, threads: int = 1, groups: Groups | None = None
    ) -> Array:
        """The last buffer written [rows, width], a new float32 array. ``chosen``: int32 indices of
        tokens, for a tape with ``choose``; other tapes give all rows. ``groups``: adapters, and
        for each token the index of its own among them, or -1 (``Adapted``). Raises MemoryError;
        ValueError for a tape without operations, or indices of another kind."""
        if self._last < 0:
            raise ValueError("the tape has no operations.")
        if chosen.dtype != np.int32 or not chosen.flags.c_contiguous:
            raise ValueError(f"chosen is {chosen.dtype}; contiguous int32 is needed.")
        if pass_.width not in (0, self._embedded):
            raise ValueError(
                f"embeddings of width {pass_.width} are given; {self._embedded} is the tape's."
            )
        rows = len(chosen) if self._chooses else pass_.tokens
        width = self._widths[self._last]
        out = np.empty((rows, width), dtype=np.float32)
        where = int(chosen.__array_interface__["data"][0])
        values = self._tape, threads, pass_.address, where, len(chosen), address(out)
        if groups is None or not self._adapts:
            got = need().tape_run(*values)
        else:
            used = [_adapted(groups[0], of) for of in (groups[1], groups[1][chosen])]
            got = need().tape_run_adapted(*values, *(use and use.address for use in used))
        if got < 0:
            raise MemoryError(f"no memory for a pass of {pass_.tokens} tokens.")
        return out

    def _out(self, buffer: int, *kept: object) -> int:
        self._kept.extend(kept)
        self._last = buffer
        return buffer


def _adapted(adapters: Sequence[Adapter], groups: Array) -> Adapted | None:
    return Adapted(adapters, groups) if (groups >= 0).any() else None


__all__ = ["KV", "Fields", "Heads", "Pass", "Rotary", "Tape"]
