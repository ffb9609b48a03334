"""Keys and values in pages on a CPU: rotary embedding with the append to the pool, and attention.

A slot is ``page * page_size + place``; pools are [slots, kv_heads, dim]. A pass is described by
host arrays of int32 (``sglang.srt.attention.attention_protocol.Layout`` holds the same).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sgl_kernel.arrays import (
    TYPES,
    AnyArray,
    address,
    contiguous,
    described,
    dtype_name,
    empty,
    is_contiguous,
    stride,
)
from sgl_kernel.fields import Fields, bits
from sgl_kernel.native import need

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Heads:
    """Query and key heads of a layer; a query sees itself and ``window - 1`` tokens before it (0:
    all); with ``soft_cap`` scores become ``cap * tanh(score / cap)``.

    Values have ``value`` dimensions (0: ``dim``); where they are ``shared``, they are the first of
    their keys' dimensions. ``sinks`` [q]: scores that join the softmax's sum and have no value.
    """

    q: int
    kv: int
    dim: int
    scale: float
    window: int = 0
    soft_cap: float = 0.0
    value: int = 0
    shared: bool = False
    sinks: AnyArray | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.value:
            object.__setattr__(self, "value", self.dim)
        if self.kv < 1 or self.q < 1 or self.q % self.kv:
            raise ValueError(f"{self.q} query heads cannot share {self.kv} key heads evenly.")
        if self.dim < 2 or self.dim % 2:
            raise ValueError(f"heads have {self.dim} dimensions; an even number is needed.")
        if self.value < 2 or self.value % 2:
            raise ValueError(f"values have {self.value} dimensions; an even number is needed.")
        if self.shared and self.value >= self.dim:
            raise ValueError(
                f"{self.value} dimensions of values are no part of {self.dim} of keys."
            )
        sinks = self.sinks
        if sinks is not None and (dtype_name(sinks), tuple(sinks.shape)) != ("float32", (self.q,)):
            raise ValueError(f"sinks are {described(sinks)}; float32 ({self.q},).")

    @property
    def qkv(self) -> int:
        """Width of the queries, keys and values of a token, side by side."""
        return (self.q + self.kv) * self.dim + (0 if self.shared else self.kv * self.value)

    @property
    def fields(self) -> Fields:
        sinks = None if self.sinks is None else contiguous(self.sinks)
        values = [
            self.q, self.kv, self.dim, bits(self.scale), self.window, bits(self.soft_cap),
            self.value, address(sinks),
        ]  # fmt: skip
        return Fields(values, sinks)


@dataclass(frozen=True)
class Rotary:
    """Cosines and sines [length, turned / 2], float32, and the gains [dim] of q and k where they
    are normed before they are rotated.

    ``sections``: how many of the turned / 2 pairs of dimensions turn by each of a token's three
    positions, in a pass that has three. By default all turn by the first one.
    """

    cos: AnyArray
    sin: AnyArray
    q_gain: AnyArray | None = None
    k_gain: AnyArray | None = None
    eps: float = 1e-6
    sections: tuple[int, int, int] | None = None

    @property
    def turned(self) -> int:
        """The number of a head's dimensions that turn."""
        return 2 * int(self.cos.shape[1])

    @property
    def fields(self) -> Fields:
        """Raises ValueError for sections that do not add up to the pairs."""
        sections = self.sections or (self.turned // 2, 0, 0)
        if min(sections) < 0 or 2 * sum(sections) != self.turned:
            raise ValueError(f"sections {sections} do not add up to {self.turned // 2} pairs.")
        values = [
            address(self.cos), address(self.sin), self.turned, address(self.q_gain),
            address(self.k_gain), bits(self.eps), *sections,
        ]  # fmt: skip
        return Fields(values, self)


@dataclass(frozen=True)
class KV:
    """One layer's pools [slots, kv_heads, dim], float32, bfloat16, float8 (e4m3) or int8; int8 ones
    have scales [slots, kv_heads], float32. Values that are the beginning of their keys are a view
    of them, and have their scales."""

    keys: AnyArray
    values: AnyArray
    key_scales: AnyArray | None = None
    value_scales: AnyArray | None = None

    @property
    def fields(self) -> Fields:
        values = [
            TYPES[dtype_name(self.keys)], address(self.keys), address(self.values),
            address(self.key_scales), address(self.value_scales),
        ]  # fmt: skip
        return Fields(values, self)


class Pass(Fields):
    """Rows of new tokens, all arrays int32: ids and positions [tokens], starts and counts [rows],
    tables [rows + 1], pages. Positions [3, tokens] are times, heights and widths. Nothing is
    checked against pools and vocabulary here.

    ``given``: indices of tokens whose embeddings are not the table's, int32, ascending, and these
    embeddings [len, width], contiguous float32. Raises ValueError where they are something else.
    """

    def __init__(
        self, ids: Array, positions: Array, starts: Array, counts: Array, tables: Array,
        pages: Array, page_size: int, given: tuple[Array, AnyArray] | None = None,
    ) -> None:  # fmt: skip
        rows, tokens = len(counts), len(ids)
        self.rows, self.tokens = rows, tokens
        self.width = 0
        axes = len(positions) if positions.ndim > 1 else 1
        if positions.shape not in ((tokens,), (3, tokens)):
            raise ValueError(f"positions are {described(positions)}; [{tokens}] or [3, {tokens}].")
        at, states = _given(*given, tokens) if given else (ids[:0], None)
        if states is not None:
            self.width = states.shape[1]
        firsts = np.cumsum(counts, dtype=np.int32) - counts
        # One block of memory, so that one address is looked up.
        sizes = (tokens, axes * tokens, rows, rows, rows, rows + 1, len(pages), len(at))
        block = np.concatenate(
            [ids, positions.ravel(), starts, counts, firsts, tables, pages, at], dtype=np.int32
        )
        base = int(block.__array_interface__["data"][0])
        places = [base + 4 * int(n) for n in np.cumsum((0, *sizes[:-1]))]
        super().__init__(
            [rows, tokens, page_size, *places, address(states), len(at), axes], block, states
        )


def _given(at: Array, states: AnyArray, tokens: int) -> tuple[Array, AnyArray]:
    fits = dtype_name(states) == "float32" and is_contiguous(states)
    if not fits or states.shape[0] != len(at):
        raise ValueError(
            f"embeddings are {described(states)}; contiguous float32 [{len(at)}, width] are needed."
        )
    if len(at) and not (at[0] >= 0 and at[-1] < tokens and (at[1:] > at[:-1]).all()):
        raise ValueError(f"embeddings are given for tokens {at}; ascending ones of {tokens}.")
    return at, states


def append(
    pass_: Pass, heads: Heads, rotary: Rotary, qkv: AnyArray, kv: KV, threads: int = 1
) -> None:
    """Rotate q in place and k, of qkv [tokens, heads.qkv] float32, and write k and v to the
    pool's slots of the pass."""
    h, r, pool = (
        heads.fields,
        rotary.fields,
        kv.fields,
    )  # owners of the addressed memory
    need().append(
        threads, pass_.address, h.address, r.address, address(qkv), stride(qkv), pool.address
    )


def attend(pass_: Pass, heads: Heads, qkv: AnyArray, kv: KV, threads: int = 1) -> AnyArray:
    """Causal attention of every row over its pages, after ``append``.

    qkv: float32 [tokens, heads.qkv]. Returns float32 [tokens, q * value].
    """
    out = empty(qkv, pass_.tokens, heads.q * heads.value)
    h, pool = heads.fields, kv.fields
    if not need().attend(
        threads, pass_.address, h.address, address(qkv), stride(qkv), pool.address,
        address(out), stride(out),
    ):  # fmt: skip
        raise MemoryError(f"no memory for attention over {pass_.tokens} tokens.")
    return out
