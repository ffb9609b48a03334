"""TapeWriter: records the calls of ``layers.pass_writer`` in a tape, a native op list that computes
a whole pass in one call. A buffer is an int; the residual stream is a buffer that products add to.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from sglang.srt.attention.attention_protocol import Heads
from sglang.srt.layers.embedding import TokenEmbedding
from sglang.srt.layers.experts import Experts
from sglang.srt.layers.latent_expansion import Expansion
from sglang.srt.layers.linear import ColumnLinear, RowLinear
from sglang.srt.layers.norm import (
    HeadNorm,
    HeadNorms,
    HeadsNorm,
    LayerNorm,
    RMSNorm,
    WholeRMSNorm,
)
from sglang.srt.layers.operations import HeadGains
from sglang.srt.layers.pass_writer import PassDescription, PassWriter
from sglang.srt.layers.rotary import Rotary, SectionedRotary
from sglang.srt.layers.weight import Stored
from sglang.srt.numeric.host_arrays import Array, Weight

if TYPE_CHECKING:
    from sgl_kernel import paged
    from sgl_kernel.meeting import Meeting
    from sgl_kernel.tape import Tape


class MissingWord(Exception):
    """A model calls a method, or uses an option, that a tape cannot record."""


class TapeValue(NamedTuple):
    """A buffer. ``norm``: applied by the product that reads the buffer. ``additions``: number of
    additions to the stream before it was read as this value; -1 for other buffers."""

    buffer: int
    norm: RMSNorm | None = None
    additions: int = -1


class TapeWriter:
    """Implements ``pass_writer.PassWriter``, except for norms over the heads of all ranks
    (``missing_word``).

    All layers share their buffers, one for each use and width, because the next operation reads
    an output at once. Products have a buffer per name, because latent attention reads two products.
    """

    def __init__(self, tape: Tape, pools: Sequence[paged.KV]) -> None:
        """``pools``: KV pools of the model's layers. The model's matrices must be packed."""
        self.tape, self.pools = tape, pools
        self.stream, self.additions = -1, 0
        self._angles: dict[int, tuple[Array, Array]] = {}
        self._buffers: dict[tuple[str, int], int] = {}  # by use and width

    def embed(self, table: TokenEmbedding, scale: float) -> None:
        assert table.packed is not None
        self.stream = self.tape.embed(table.packed, scale)
        if (meeting := table.group.meeting) is not None:
            self.tape.share(table.first)
            self._reduce(self.stream, meeting, self.stream)

    def input(self, width: int) -> None:
        self.stream = self.tape.input(width)

    def add_positions(self, table: Weight) -> None:
        self.tape.place(self.stream, table)

    def read(self, norm: RMSNorm | LayerNorm | None = None) -> TapeValue:
        """Return the stream. The next LayerNorm overwrites the output of a LayerNorm."""
        if isinstance(norm, LayerNorm):
            return TapeValue(self._norm(norm))
        return TapeValue(self.stream, norm, self.additions)

    def norm(self, x: TapeValue, norm: RMSNorm) -> TapeValue:
        return TapeValue(x.buffer, norm)

    def product(self, x: TapeValue, layer: ColumnLinear) -> TapeValue:
        assert layer.packed is not None
        into = self._buffer(" ".join(layer.parts), layer.packed.outputs)
        return TapeValue(self._linear(x, layer, into))

    def gate(self, x: TapeValue, layer: ColumnLinear, act: str) -> TapeValue:
        return TapeValue(self._linear(x, layer, self._outputs(layer), act=act))

    def activate(self, x: TapeValue, act: str) -> TapeValue:
        self.tape.activate(x.buffer, act)
        return x

    def attend(
        self, qkv: TapeValue, heads: Heads, rotary: Rotary | None, norms: HeadNorms | None
    ) -> TapeValue:
        check_norms(norms)
        first = 0
        for norm, count in zip(norms or (), (heads.num_heads, heads.num_kv_heads)):
            self._norm_heads(qkv.buffer, norm, first, count)
            first += count * heads.head_dim
        turns = self._turns(rotary, norms and norms.gains)
        return self._attend(qkv.buffer, heads, turns, shared=False)

    def attend_latent(
        self, q: TapeValue, latent: TapeValue, heads: Heads, rotary: Rotary, norm: RMSNorm,
        expansion: Expansion,
    ) -> TapeValue:  # fmt: skip
        """See ``PassWriter``. Queries in the space of latents and the latent share a buffer."""
        tape, shape, count = self.tape, expansion.shape, heads.num_heads
        own, unit = shape.still + shape.turned, heads.head_dim
        keys, values = expansion.keys.packed, expansion.of_values.packed
        assert keys is not None
        assert values is not None
        turns, key = self._turns(rotary), count * unit
        qkv = self._buffer("latents", key + unit)
        tape.each(q.buffer, keys, qkv, (0, own), (0, unit))
        tape.turn(q.buffer, turns, count, qkv, (shape.still, own), (shape.rank, unit))
        tape.norm(latent.buffer, norm.weight, norm.eps, into=qkv, to=key)
        tape.turn(latent.buffer, turns, 1, qkv, (shape.rank, 0), (key + shape.rank, 0))
        sums = self._attend(qkv, heads, self._turns(None), shared=True)
        into = self._buffer("attended", count * shape.value)
        tape.each(sums.buffer, values, into, (0, shape.rank), (0, shape.value))
        return TapeValue(into)

    def _attend(self, qkv: int, heads: Heads, turns: paged.Rotary, shared: bool) -> TapeValue:
        from sgl_kernel import paged

        shape = paged.Heads(
            heads.num_heads, heads.num_kv_heads, heads.head_dim, heads.scale, heads.window,
            heads.soft_cap, heads.value_dim, shared, heads.sinks,
        )  # fmt: skip
        pool = self.pools[heads.index]
        self.tape.append(qkv, shape, turns, pool)
        into = self._buffer("sums" if shared else "attended", shape.q * shape.value)
        return TapeValue(self.tape.attend(qkv, shape, pool, into))

    def _turns(self, rotary: Rotary | None, gains: HeadGains | None = None) -> paged.Rotary:
        """Return the rotation, or no rotation without ``rotary``, with the norms of heads."""
        from sgl_kernel import paged
        from sgl_kernel.arrays import floats

        q_gain, k_gain, eps = gains or (None, None, 0.0)
        cos = sin = np.empty((0, 0), np.float32)  # rotates nothing
        if rotary is not None:
            if id(rotary) not in self._angles:
                self._angles[id(rotary)] = rotary.angles()
            cos, sin = self._angles[id(rotary)]
        return paged.Rotary(
            cos, sin, None if q_gain is None else floats(q_gain),
            None if k_gain is None else floats(k_gain), eps,
            rotary.sections if isinstance(rotary, SectionedRotary) else None,
        )  # fmt: skip

    def _norm_heads(self, qkv: int, norm: HeadNorm, first: int, count: int) -> None:
        """Norm ``count`` heads from column ``first`` on. RMSNorm per head is left to attention."""
        if isinstance(norm, WholeRMSNorm):
            self.tape.norm(qkv, norm.weight, norm.eps, into=qkv, first=first)
        elif isinstance(norm, HeadsNorm):
            for i in range(count):
                at, gain = first + i * norm.dim, norm.weight[i]
                self.tape.norm(qkv, gain, norm.eps, into=qkv, first=at, centred=True)

    def choose(self, *values: TapeValue) -> list[TapeValue]:
        whole, self.stream = self.stream, self.tape.choose(self.stream)
        return [
            x._replace(buffer=self.stream if x.buffer == whole else self.tape.choose(x.buffer))
            for x in values
        ]

    def add(self, layer: RowLinear, x: TapeValue, norm: RMSNorm | None = None) -> None:
        """See ``PassWriter``. Partial sums of ranks have a buffer; rank 0's part has the bias."""
        group, into = layer.group, self.stream
        if group.meeting is not None:
            into = self._buffer("part", layer.shape[0])
        elif norm is not None:
            into = self._outputs(layer)
        self._linear(x, layer, into, add=into == self.stream, bias=group.rank == 0)
        if group.meeting is not None:
            into = self._reduce(into, group.meeting, self.stream if norm is None else into)
        if norm is not None:
            self.tape.norm(into, norm.weight, norm.eps, into=self.stream, add=True)
        self.additions += 1

    def experts(self, layer: Experts, x: TapeValue) -> None:
        native, meeting, into = layer.native(), layer.place.group.meeting, self.stream
        if meeting is not None:
            into = self._buffer("part", native.width)
        self.tape.experts(x.buffer, native, into, *self._gain(x), add=meeting is None)
        if meeting is not None:
            self._reduce(into, meeting, self.stream)
        self.additions += 1

    def end(self, norm: RMSNorm | LayerNorm | None) -> int:
        return self.stream if norm is None else self._norm(norm)

    def _reduce(self, part: int, meeting: Meeting, into: int) -> int:
        """Sum the ranks' parts in their buffer if ``into`` is ``part``, else add the sum to it."""
        return self.tape.reduce(part, meeting, into, into != part)

    def _norm(self, norm: RMSNorm | LayerNorm) -> int:
        """Return the normed stream, in a buffer that the next norm overwrites."""
        into = self._buffers.get(key := ("normed", len(norm.weight)))
        bias, centred = (norm.bias, True) if isinstance(norm, LayerNorm) else (None, False)
        self._buffers[key] = self.tape.norm(
            self.stream, norm.weight, norm.eps, into=into, bias=bias, centred=centred
        )
        return self._buffers[key]

    def _linear(
        self, x: TapeValue, layer: Stored, into: int, add: bool = False, act: str = "silu",
        bias: bool = True,
    ) -> int:  # fmt: skip
        assert layer.packed is not None
        gain, eps = self._gain(x)
        return self.tape.linear(
            x.buffer, layer.packed, into=into, add=add, gain=gain, eps=eps,
            bias=layer.bias if bias else None, act=act, product=layer.site,
        )  # fmt: skip

    def _gain(self, x: TapeValue) -> tuple[Weight | None, float]:
        """Return gain and eps of the norm of a product's input."""
        if x.additions not in (-1, self.additions):
            raise ValueError("the stream was added to after it was read; read it again.")
        return (None, 0.0) if x.norm is None else (x.norm.weight, x.norm.eps)

    def _outputs(self, layer: Stored) -> int:
        assert layer.packed is not None
        return self._buffer("outputs", layer.packed.outputs)

    def _buffer(self, use: str, width: int) -> int:
        if (use, width) not in self._buffers:
            self._buffers[use, width] = self.tape.buffer(width)
        return self._buffers[use, width]


def check_norms(norms: HeadNorms | None) -> None:
    """Raise MissingWord for norms of heads that a tape cannot record."""
    for norm in norms or ():
        if isinstance(norm, WholeRMSNorm) and norm.group.size > 1:
            raise MissingWord("norms over the heads of all ranks")


class TapeWords:
    """A writer that records nothing and raises MissingWord for calls that ``TapeWriter`` does not
    support. The models that use this writer need no weights."""

    def __getattr__(self, word: str) -> Callable[..., Any]:
        if not hasattr(TapeWriter, word):
            raise MissingWord(word)
        return lambda *arguments, **named: None

    def attend(
        self, qkv: Any, heads: Heads, rotary: Rotary | None, norms: HeadNorms | None
    ) -> None:
        check_norms(norms)

    def choose(self, *values: Any) -> list[Any]:
        return list(values)


def missing_word(model: PassDescription) -> str:
    """Return the first call of the model that a tape cannot record, "" if it can record all."""
    try:
        model.write(cast(PassWriter, TapeWords()))
    except MissingWord as missing:
        return str(missing)
    return ""


def record(model: PassDescription, tape: Tape, pools: Sequence[paged.KV]) -> None:
    """Record the pass of a model that has no ``missing_word`` and whose matrices are packed."""
    model.write(cast(PassWriter, TapeWriter(tape, pools)))
