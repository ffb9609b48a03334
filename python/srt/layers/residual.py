"""Residual: the stream of hidden states that every sublayer adds to."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from sglang.srt.numeric.torch_later import Tensor


class PendingNorm(Protocol):
    """RMSNorm with gains ``weight``."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor: ...


class Residual(NamedTuple):
    """Hidden states [T, width], and what is still to be added to them: ``norm(pending)``.

    The outputs of a sublayer wait here for the norm after them, which adds them in the same kernel
    on a GPU. ``pending`` belongs to the stream: the addition may overwrite it, but never ``x``.
    """

    x: Tensor
    pending: Tensor | None = None
    norm: PendingNorm | None = None

    @property
    def sum(self) -> Tensor:
        """The hidden states, [T, width]."""
        if self.pending is None:
            return self.x
        return self.x + (self.pending if self.norm is None else self.norm(self.pending))
