"""``Drawing``: tokens that are being sampled, and their way to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Drawing:
    """
    Attributes:
        tokens: int64 [n] on the device.
        fetched: tensors that ``outcome`` needs on the host.
        outcome: from these, the tokens and one message a row, "" where the token is valid.
    """

    tokens: Tensor
    fetched: list[Tensor]
    outcome: Callable[[Sequence[Tensor]], tuple[list[int], list[str]]]


def drawn(tokens: Tensor, errors: list[str]) -> Drawing:
    """Sampled tokens whose messages are known, as those of ``sampler.draw``."""
    return Drawing(tokens, [tokens], lambda host: (host[0].tolist(), errors))
