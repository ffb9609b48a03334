"""The contract between a model and an attention implementation.

    plan(layout)            once per pass: everything that depends on the batch alone
    attend(heads, q, k, v)  once per layer: store the new keys and values, then attend

The implementation owns the KV pools of its constructor. ``plan`` replaces the plan of the last pass
and touches no pool. ``attend`` writes ``k`` and ``v`` of **all** rows to the layer's pool before
any row reads it, so a row may read pages that another row of the same batch writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from sglang.srt.numeric.torch_later import Tensor

Int32Array = np.ndarray[Any, np.dtype[np.int32]]


@dataclass(frozen=True)
class KVShape:
    """Shape of a token in the pools of a layer: a key and a value for each of ``heads``.

    Attributes:
        shared: the value is the first ``value_dim`` dimensions of the key, without memory of its
            own, as in multi-head latent attention (DeepSeek-V2, section 2.1). Every rank of a
            group then holds all heads.
    """

    heads: int
    key_dim: int
    value_dim: int
    shared: bool = False

    def __post_init__(self) -> None:
        if self.shared and not self.value_dim < self.key_dim:
            raise ValueError(
                f"values of {self.value_dim} dimensions are no part of keys of {self.key_dim}."
            )

    @property
    def plain(self) -> bool:
        """True if values are as wide as keys and stored separately."""
        return not self.shared and self.key_dim == self.value_dim


@dataclass(frozen=True)
class Heads:
    """Attention of one layer, on this rank.

    Attributes:
        index: the layer's index among the pools.
        head_dim: dimensions of a query or key.
        scale: factor of the scores, usually ``head_dim ** -0.5``.
        window: a query sees itself and the ``window - 1`` tokens before it; 0: all before it.
        soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; 0: no soft cap.
        value_dim: dimensions of a value or output; 0 becomes ``head_dim``.
        sinks: a score for each query head, float32 [num_heads], that is added to the softmax's
            sum and has no value, so that a head may attend to nothing (GPT-OSS).
    """

    index: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window: int = 0
    soft_cap: float = 0.0
    value_dim: int = 0
    sinks: Tensor | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.value_dim:
            object.__setattr__(self, "value_dim", self.head_dim)


@dataclass(frozen=True)
class Layout:
    """Rows of one pass, as plain host arrays (int32).

    Row ``r`` has ``counts[r]`` new tokens after ``starts[r]`` earlier ones. Its page table is
    ``pages[tables[r] : tables[r + 1]]`` and covers ``starts[r] + counts[r]`` tokens. The pass's
    ``T = counts.sum()`` new tokens are ordered by row.

    Attributes:
        starts, counts: shape [R].
        tables: shape [R + 1], offsets into ``pages``.
        pages: page numbers of all rows, concatenated.
        positions: shape [T], index of each new token in its row's sequence, which gives the slot
            of its key and value. The rotation of q and k may use other positions.
    """

    starts: Int32Array
    counts: Int32Array
    tables: Int32Array
    pages: Int32Array
    positions: Int32Array


class Attention(Protocol):
    """An attention implementation. The module's docstring says which state each call changes."""

    def plan(self, layout: Layout) -> None:
        """Prepare a pass."""

    def attend(self, heads: Heads, q: Tensor, k: Tensor, v: Tensor | None) -> Tensor:
        """Compute causal attention of the planned rows.

        q: [T, num_heads, head_dim]; k: [T, num_kv_heads, head_dim], both rotated already;
        v: [T, num_kv_heads, value_dim], None if the layer's pools are shared (``KVShape``).
        Returns [T, num_heads * value_dim].
        """


class KVTarget(NamedTuple):
    """The pools of a layer [slots, num_kv_heads, head_dim], and the slots of a pass's new tokens,
    int32 or int64 [T]."""

    keys: Tensor
    values: Tensor
    slots: Tensor


@runtime_checkable
class Writable(Attention, Protocol):
    """An implementation that lets an earlier kernel write the pools: ``attend`` in two calls."""

    def target(self, heads: Heads) -> KVTarget:
        """Return the layer's pools and the slots for the new keys and values of the planned
        pass."""
        ...

    def read(self, heads: Heads, q: Tensor) -> Tensor:
        """Compute attention after a kernel has written the new keys and values to ``target``."""
        ...


@runtime_checkable
class Capturable(Attention, Protocol):
    """An implementation whose decode passes can be captured as a graph."""

    def frame(self, rows: int, pages: int, longest: int) -> Attention:
        """Return attention for passes of exactly ``rows`` rows with one new token each, over at
        most ``pages`` pages in all and ``longest`` tokens per row.

        ``plan`` of the frame writes device buffers at fixed addresses, so that a captured
        ``attend`` computes the last plan. Frames share the buffers: make the largest frame first,
        and plan a frame again after another frame was planned.
        """
        ...


@runtime_checkable
class Resident(Attention, Protocol):
    """Attention of a captured pass that can read page tables which are already on the device.

    Attributes:
        entries: page numbers, int32 [N]; ``plan`` overwrites its beginning.
    """

    entries: Tensor

    def plan_resident(self, layout: Layout, firsts: Int32Array, padding: int) -> None:
        """Plan a pass whose page tables are in ``entries``: row ``r``'s begins at ``firsts[r]``.
        Further rows of the capture are padding: one token each in page ``padding``, which entry 0
        holds."""
        ...
