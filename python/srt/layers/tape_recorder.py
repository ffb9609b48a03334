"""TapeRecorder: a model tells what a pass does, once, for a native tape to do it in one call.

Every layer has two readings: ``__call__`` computes with torch, ``record`` says the same in the
words of this file. Buffers are numbers; the residual stream is one buffer that products add to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from sglang.srt.attention.attention_protocol import Heads
from sglang.srt.numeric.host_arrays import Array, Weight

if TYPE_CHECKING:
    from sgl_kernel import paged
    from sgl_kernel.experts import Experts
    from sgl_kernel.meeting import Meeting
    from sgl_kernel.tape import Tape
    from sglang.srt.layers.rotary import Rotary
    from sglang.srt.layers.weight import Stored


class ProductInput(NamedTuple):
    """A buffer, RMS-normed with ``gain`` where there is one, as the input of a product."""

    buffer: int
    gain: Weight | None = None
    eps: float = 0.0


class TapeRecorder:
    """Writes a tape over the pools of a model's layers.

    All layers share their buffers, one for each width: a product's outputs are read by what follows
    at once. What was attended may wait for another product, so it has buffers of its own.
    """

    def __init__(self, tape: Tape, pools: Sequence[paged.KV]) -> None:
        self.tape, self.pools = tape, pools
        self._angles: dict[int, tuple[Array, Array]] = {}
        self._buffers: dict[int, int] = {}  # buffers of products, by width
        self._parts: dict[int, int] = {}  # of ranks, by width
        self._attended: dict[int, int] = {}  # by width
        self._normed: dict[int, int] = {}  # by width

    def embed(self, table: Stored, scale: float = 1.0) -> int:
        assert table.packed is not None
        return self.tape.embed(table.packed, scale)

    def linear(
        self, x: ProductInput, layer: Stored, residual: int | None = None, act: str = "silu"
    ) -> int:
        """A buffer of products, or ``residual``, to which the product is added."""
        assert layer.packed is not None
        into = self._buffer(layer.packed.outputs) if residual is None else residual
        return self.tape.linear(
            x.buffer, layer.packed, into=into, add=residual is not None, gain=x.gain,
            eps=x.eps, bias=layer.bias, act=act,
            product=layer.site,
        )  # fmt: skip

    def partial(self, x: ProductInput, layer: Stored, first: bool) -> int:
        """A buffer of this rank's part of products, with the bias where it is the ``first``."""
        assert layer.packed is not None
        bias = layer.bias if first else None
        return self.tape.linear(
            x.buffer, layer.packed, into=self._part(layer.packed.outputs), gain=x.gain, eps=x.eps,
            bias=bias, product=layer.site,
        )  # fmt: skip

    def reduce(self, part: int, meeting: Meeting, residual: int | None = None) -> int:
        """The sum of the ranks' parts in their buffer, or added to the residual stream."""
        into = part if residual is None else residual
        return self.tape.reduce(part, meeting, into, residual is not None)

    def share(self, first: int) -> None:
        """The embedding has the rows from ``first`` on alone (``Tape.share``)."""
        self.tape.share(first)

    def input(self, width: int) -> int:
        """The states that the stage before computed: the residual stream."""
        return self.tape.input(width)

    def experts(
        self, x: ProductInput, layer: Experts, residual: int, meeting: Meeting | None = None
    ) -> None:
        """Add a mixture's outputs to the residual stream; with ``meeting``, those of all ranks."""
        if meeting is None:
            self.tape.experts(x.buffer, layer, residual, x.gain, x.eps)
            return
        part = self._part(layer.width)
        self.tape.experts(x.buffer, layer, part, x.gain, x.eps, add=False)
        self.reduce(part, meeting, residual)

    def attend(
        self,
        qkv: int,
        heads: Heads,
        rotary: Rotary | None,
        gains: tuple[Weight, Weight, float] | None,
    ) -> int:
        """Rotate, store and attend; ``gains`` of q and k and their eps, where they are normed."""
        from sgl_kernel import paged
        from sgl_kernel.arrays import floats

        cos = sin = np.empty((0, 0), np.float32)  # turns nothing
        if rotary is not None:
            if id(rotary) not in self._angles:
                self._angles[id(rotary)] = rotary.angles()
            cos, sin = self._angles[id(rotary)]
        shape = paged.Heads(
            heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.scale, heads.window,
            heads.soft_cap, heads.value_dim, sinks=heads.sinks,
        )  # fmt: skip
        pool = self.pools[heads.index]
        q_gain, k_gain, eps = gains or (None, None, 0.0)
        if gains is not None:
            q_gain, k_gain = floats(q_gain), floats(k_gain)
        self.tape.append(
            qkv,
            shape,
            paged.Rotary(
                cos,
                sin,
                q_gain,
                k_gain,
                eps,
            ),
            pool,
        )
        width = shape.q * shape.value
        if width not in self._attended:
            self._attended[width] = self.tape.buffer(width)
        return self.tape.attend(qkv, shape, pool, self._attended[width])

    def choose(self, x: int) -> int:
        """Keep only the tokens whose outputs are wanted."""
        return self.tape.choose(x)

    def norm(
        self, x: int, gain: Weight, eps: float, bias: Weight | None = None, centred: bool = False
    ) -> int:
        """x normed, in a buffer that the next norm overwrites; ``centred``: by LayerNorm."""
        key = len(gain)
        self._normed[key] = self.tape.norm(
            x, gain, eps, into=self._normed.get(key), bias=bias, centred=centred
        )
        return self._normed[key]

    def add_norm(self, x: ProductInput, residual: int) -> None:
        """Add x, normed, to the residual stream."""
        assert x.gain is not None
        self.tape.norm(x.buffer, x.gain, x.eps, into=residual, add=True)

    def norm_columns(self, x: int, first: int, gain: Weight, eps: float) -> None:
        """Norm columns of x in place, as many as there are gains."""
        self.tape.norm(x, gain, eps, into=x, first=first)

    def activate(self, x: int, act: str) -> None:
        """Apply an activation in place."""
        self.tape.activate(x, act)

    def place(self, x: int, table: Weight) -> None:
        """Add the row of each token's position."""
        self.tape.place(x, table)

    def _part(self, width: int) -> int:
        """The buffer of one rank's part of a sum. None of its products reads it."""
        if width not in self._parts:
            self._parts[width] = self.tape.buffer(width)
        return self._parts[width]

    def _buffer(self, width: int) -> int:
        if width not in self._buffers:
            self._buffers[width] = self.tape.buffer(width)
        return self._buffers[width]
