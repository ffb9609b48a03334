"""Low-rank adapters of products: what they are made of, and which tokens of a pass they apply to.

An adapter has pairs of matrices for some of a model's products, which are numbered: for a token x
outputs ``[first, first + count)`` gain ``(x a^T) b``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sgl_kernel.arrays import TYPES, AnyArray, address, dtype_name, is_contiguous
from sgl_kernel.fields import Fields

Array = np.ndarray[Any, Any]
WHOLE = 8  # low numbers of a token come in whole eights


@dataclass(frozen=True)
class Pair:
    """a: [rank, inputs], b: [rank, count], contiguous, both float32 or both bfloat16."""

    a: AnyArray
    b: AnyArray
    first: int = 0

    def __post_init__(self) -> None:
        names = dtype_name(self.a), dtype_name(self.b)
        if names[0] != names[1] or names[0] not in ("float32", "bfloat16"):
            raise ValueError(
                f"a is {self.a.dtype} and b {self.b.dtype}; float32 or bfloat16 is needed for both."
            )
        whole = is_contiguous(self.a) and is_contiguous(self.b)
        if self.a.shape[0] != self.b.shape[0] or not whole:
            raise ValueError(f"a {tuple(self.a.shape)} and b {tuple(self.b.shape)} are no pair.")


class Adapter:
    """The pairs of one adapter, by product. Holds the memory that the native side reads."""

    def __init__(self, pairs: Mapping[int, Sequence[Pair]], products: int) -> None:
        counts = [len(pairs.get(product, ())) for product in range(products)]
        flat = [pair for product in range(products) for pair in pairs.get(product, ())]
        rows = [(address(p.a), address(p.b), p.a.shape[0], p.first, p.b.shape[1]) for p in flat]
        self.type = TYPES[dtype_name(flat[0].a)] if flat else 0
        if any(TYPES[dtype_name(pair.a)] != self.type for pair in flat):
            raise ValueError("the pairs of an adapter must be of one dtype.")
        self._pairs = np.array(rows or [(0, 0, 0, 0, 0)], dtype=np.int64)
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        self._kept = flat
        ranks = [sum(p.a.shape[0] for p in pairs.get(n, ())) for n in range(products)]
        self.rank = max(ranks, default=0)

    @property
    def addresses(self) -> tuple[int, int]:
        return self._pairs.ctypes.data, self._starts.ctypes.data


class Adapted(Fields):
    """Adapter of each of some tokens: ``groups[t]`` is an index into ``adapters``, -1 for none.

    ``adapters`` are of one dtype, over the same products; at least one token has one.
    """

    def __init__(self, adapters: Sequence[Adapter], groups: Array) -> None:
        tokens = np.flatnonzero(groups >= 0).astype(np.int32)
        own = np.ascontiguousarray(groups[tokens], dtype=np.int32)
        places = np.full(len(groups), -1, dtype=np.int32)
        places[tokens] = np.arange(len(tokens), dtype=np.int32)
        table = np.array([adapter.addresses for adapter in adapters], dtype=np.int64)
        stride = max(adapter.rank for adapter in adapters)
        stride = max(-(-stride // WHOLE), 1) * WHOLE
        arrays = (table, tokens, own, places)
        places_of = [array.ctypes.data for array in arrays]
        super().__init__(
            [len(tokens), len(adapters), stride, adapters[0].type, *places_of], *arrays, *adapters
        )
