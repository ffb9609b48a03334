"""Sampled tokens on their way to the host, and sizes of token masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NOT_FINITE = "the model's logits are not finite"


@dataclass(frozen=True)
class Drawing:
    """Tokens that are being sampled, and their way to the host.

    Attributes:
        tokens: int32 [n] on the device.
        fetched: tensors that ``outcome`` needs on the host.
        outcome: from these, the tokens and one message a row, "" where the token is valid.
    """

    tokens: Any
    fetched: list[Any]
    outcome: Callable[[Sequence[Any]], tuple[list[int], list[str]]]


def drawn(tokens: Any, errors: list[str]) -> Drawing:
    """Sampled tokens int32 [n], whose messages are known."""
    return Drawing(tokens, [tokens], lambda host: (host[0].tolist(), errors))


def mask_bytes(vocab: int) -> int:
    """Size of a mask."""
    return 4 * ((vocab + 31) // 32)


def sized(mask: bytes | int | None, size: int) -> tuple[bytes, str]:
    """The mask and "", or one that allows all tokens and why: it has another size."""
    words = mask if isinstance(mask, bytes) else b""
    if len(words) != size:
        return b"\xff" * size, f"the token mask has {len(words)} bytes; {size} are needed"
    return words, ""
