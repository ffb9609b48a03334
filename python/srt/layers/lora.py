"""Low-rank adapters (Hu et al. 2021): ``W x + B A x``, for each token the adapter of its row.

Every product gets the pass's ``Use`` as an argument. The adapters know a layer's product by a
number (``Stored.site``). With native kernels the sum is made inside the product, before bias,
activation and residual, and the bits of a token do not depend on the tokens beside it; elsewhere it
is made after the product, adapter by adapter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sglang.srt.attention.attention_protocol import Int32Array
from sglang.srt.numeric.host_arrays import Weight, tensor
from sglang.srt.numeric.torch_later import Tensor
from sglang.srt.parallel.staging import send

if TYPE_CHECKING:
    from sgl_kernel.lora import Adapted, Adapter


class Pair(NamedTuple):
    """Outputs ``[first, first + b.shape[1])`` of a product gain ``(x a^T) b``; the scale is in b.

    a: [rank, inputs of this rank], b: [rank, outputs of the part], contiguous, of one dtype.
    """

    a: Weight
    b: Weight
    first: int

    @property
    def bytes(self) -> int:
        return int(self.a.nbytes + self.b.nbytes)


class Weights:
    """One adapter's pairs, by the number of the product; ``products``: how many there are."""

    def __init__(self, pairs: Mapping[int, Sequence[Pair]], products: int) -> None:
        self.pairs, self.products = pairs, products

    @property
    def bytes(self) -> int:
        return sum(pair.bytes for pairs in self.pairs.values() for pair in pairs)

    def to(self, device: Any) -> Weights:
        """A copy on another device; copies from pinned memory need not be waited for."""
        return self._with(lambda half: half.to(device, non_blocking=True))

    def tensors(self) -> Weights:
        """The same arrays as tensors."""
        return self._with(tensor)

    def pinned(self) -> Weights:
        """A copy in memory that a GPU reads by itself."""
        return self._with(lambda half: half.pin_memory())

    def _with(self, change: Callable[[Weight], Weight]) -> Weights:
        changed = {
            number: [Pair(change(a), change(b), first) for a, b, first in pairs]
            for number, pairs in self.pairs.items()
        }
        return Weights(changed, self.products)

    @cached_property
    def native(self) -> Adapter:
        """The same for native products."""
        from sgl_kernel import lora

        pairs = {
            number: [lora.Pair(*pair) for pair in pairs] for number, pairs in self.pairs.items()
        }
        return lora.Adapter(pairs, self.products)


class Use:
    """The adapters of a pass: token t has ``adapters[groups[t]]``, none where ``groups[t]`` is
    negative. At least one token has one."""

    def __init__(self, adapters: Sequence[Weights], groups: Int32Array) -> None:
        self.adapters, self.groups = adapters, groups
        self._tokens: list[Tensor] | None = None

    def tokens(self, device: Any) -> list[Tensor]:
        """Tokens of each adapter: ascending int64 indices."""
        if self._tokens is None:
            order = np.argsort(self.groups, kind="stable").astype(np.int64)
            places = np.arange(len(self.adapters) + 1, dtype=self.groups.dtype)
            ends = np.searchsorted(self.groups[order], places)
            sent = send(order[int(ends[0]) :], device)
            self._tokens = list(sent.split(np.diff(ends).tolist()))
        return self._tokens

    def add(self, number: int, x: Tensor, y: Tensor) -> Tensor:
        """The outputs y [T, outputs] of product ``number``, changed in place, for its inputs x
        [T, inputs]."""
        for adapter, tokens in zip(self.adapters, self.tokens(y.device)):
            pairs = adapter.pairs.get(number, ())
            if not pairs:
                continue
            own = x.index_select(0, tokens)
            for a, b, first in pairs:
                more = (own.to(a.dtype) @ a.t()) @ b
                part = y.narrow(1, first, b.shape[1])
                part.index_add_(0, tokens, more.to(y.dtype))
        return y

    @cached_property
    def native(self) -> Adapted:
        """The same for native products."""
        from sgl_kernel.lora import Adapted

        return Adapted([adapter.native for adapter in self.adapters], self.groups)
