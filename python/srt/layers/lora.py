"""Low-rank adapters (Hu et al. 2021): ``W x + B A x`` with the adapter of each token's row.

Every product gets the pass's ``Use`` as an argument. ``Stored.site`` is the number by which
adapters identify a layer's product. Native kernels add ``B A x`` inside the product, before bias,
activation and residual, and a token's bits do not depend on the other tokens of the batch. Without
native kernels ``B A x`` is added after the product, adapter by adapter.
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
    """Adds ``(x a^T) b`` to outputs ``[first, first + b.shape[1])``; b includes the scale.

    a: [rank, inputs of this rank], b: [rank, outputs of the part], contiguous, of one dtype.
    """

    a: Weight
    b: Weight
    first: int

    @property
    def bytes(self) -> int:
        return int(self.a.nbytes + self.b.nbytes)


class Weights:
    """One adapter's pairs by product number. ``products``: number of products of the model."""

    def __init__(self, pairs: Mapping[int, Sequence[Pair]], products: int) -> None:
        self.pairs, self.products = pairs, products

    @property
    def bytes(self) -> int:
        return sum(pair.bytes for pairs in self.pairs.values() for pair in pairs)

    def to(self, device: Any) -> Weights:
        """Return a copy on another device. Copies from pinned memory are asynchronous."""
        return self._with(lambda half: half.to(device, non_blocking=True))

    def tensors(self) -> Weights:
        """Return the same weights as tensors that share memory with the arrays."""
        return self._with(tensor)

    def pinned(self) -> Weights:
        """Return a copy in pinned memory."""
        return self._with(lambda half: half.pin_memory())

    def _with(self, change: Callable[[Weight], Weight]) -> Weights:
        changed = {
            number: [Pair(change(a), change(b), first) for a, b, first in pairs]
            for number, pairs in self.pairs.items()
        }
        return Weights(changed, self.products)

    @cached_property
    def native(self) -> Adapter:
        """Weights in the form that native products take."""
        from sgl_kernel import lora

        pairs = {
            number: [lora.Pair(*pair) for pair in pairs] for number, pairs in self.pairs.items()
        }
        return lora.Adapter(pairs, self.products)


class Use:
    """Adapters of a pass: token t uses ``adapters[groups[t]]``, or none if ``groups[t]`` is
    negative. At least one token uses an adapter."""

    def __init__(self, adapters: Sequence[Weights], groups: Int32Array) -> None:
        self.adapters, self.groups = adapters, groups
        self._tokens: list[Tensor] | None = None

    def tokens(self, device: Any) -> list[Tensor]:
        """Return for each adapter the ascending int64 indices of its tokens, on ``device``."""
        if self._tokens is None:
            order = np.argsort(self.groups, kind="stable").astype(np.int64)
            places = np.arange(len(self.adapters) + 1, dtype=self.groups.dtype)
            ends = np.searchsorted(self.groups[order], places)
            sent = send(order[int(ends[0]) :], device)
            self._tokens = list(sent.split(np.diff(ends).tolist()))
        return self._tokens

    def add(self, number: int, x: Tensor, y: Tensor) -> Tensor:
        """Add the adapters' outputs to y [T, outputs] of product ``number``, in place, and return
        y. ``x``: inputs of the product [T, inputs]."""
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
        """Adapters in the form that native products take."""
        from sgl_kernel.lora import Adapted

        return Adapted([adapter.native for adapter in self.adapters], self.groups)
