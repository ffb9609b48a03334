"""The contract between a model and an attention implementation.

    plan(layout)            once a pass: everything that depends on the batch alone
    attend(layer, q, k, v)  once a layer: store the new keys and values, then attend

The implementation owns the KV pools it was made with. ``plan`` replaces the plan of the last pass
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
        shared: the value is the first ``value_dim`` dimensions of the key and has no memory of its
            own, as the latents of multi-head latent attention (DeepSeek-V2, section 2.1). Every
            rank of a group then holds all heads.
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
        """Whether values are as wide as keys and stand beside them."""
        return not self.shared and self.key_dim == self.value_dim


@dataclass(frozen=True)
class Heads:
    """Attention of one layer, on this rank.

    Attributes:
        index: the layer's index among the pools.
        head_dim: of queries and keys.
        scale: multiplies the scores, usually ``head_dim ** -0.5``.
        window: a query sees itself and the ``window - 1`` tokens before it; 0: all of them.
        soft_cap: scores become ``soft_cap * tanh(score / soft_cap)``; 0: they stay as they are.
        value_dim: of values and outputs; 0 becomes ``head_dim``.
        sinks: a score for each query head, float32 [num_heads], that joins the softmax's sum and
            has no value, so that a head may attend to nothing (GPT-OSS).
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

    Row ``r`` has ``counts[r]`` new tokens, which see ``starts[r]`` before them; its page table is
    ``pages[tables[r] : tables[r + 1]]`` and covers ``starts[r] + counts[r]`` tokens. New tokens
    lie row after row in the flat dimension of ``T = counts.sum()``.

    Attributes:
        starts, counts: shape [R].
        tables: shape [R + 1], offsets into ``pages``.
        pages: page numbers of all rows, concatenated.
        positions: shape [T], index of each new token among what its row sees: where its keys and
            values lie. The positions that q and k are rotated by may be others.
    """

    starts: Int32Array
    counts: Int32Array
    tables: Int32Array
    pages: Int32Array
    positions: Int32Array


class Attention(Protocol):
    """An implementation; see the module's text for what each call mutates."""

    def plan(self, layout: Layout) -> None:
        """Prepare a pass."""

    def attend(self, heads: Heads, q: Tensor, k: Tensor, v: Tensor | None) -> Tensor:
        """Causal attention of the planned rows.

        q: [T, num_heads, head_dim]; k: [T, num_kv_heads, head_dim], both rotated already;
        v: [T, num_kv_heads, value_dim], None where the layer's pools are shared (``KVShape``).
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
    """An implementation whose pools a kernel before it may write, in place of ``attend``."""

    def target(self, heads: Heads) -> KVTarget:
        """The pools and slots that the layer's new keys and values of the planned pass belong
        to."""
        ...

    def read(self, heads: Heads, q: Tensor) -> Tensor:
        """``attend`` where the new keys and values stand in ``target`` already."""
        ...


@runtime_checkable
class Capturable(Attention, Protocol):
    """An implementation whose decode passes can be captured as a graph."""

    def frame(self, rows: int, pages: int, longest: int) -> Attention:
        """Attention of passes of exactly ``rows`` rows with one new token each, over at most
        ``pages`` pages in all and ``longest`` tokens a row.

        Its ``plan`` writes device buffers whose addresses never change, so that what was captured
        of ``attend`` computes whatever was planned last. Frames share the buffers: the largest is
        to be made first, and each is to be planned again before it runs after another.
        """
        ...


@runtime_checkable
class Resident(Attention, Protocol):
    """Attention of a captured pass that can read page tables where they stand on the device.

    Attributes:
        entries: int32 [N], pages; ``plan`` overwrites its beginning.
    """

    entries: Tensor

    def plan_resident(self, layout: Layout, firsts: Int32Array, padding: int) -> None:
        """``plan`` for rows whose tables stand in ``entries``, the one of row ``r`` from
        ``firsts[r]`` on. The rows that the capture has beyond these are padding: one token each, in
        page ``padding``, which entry 0 names."""
        ...
