"""Tokens that are being sampled on a device (``Drawing``), and sizes of token masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NOT_FINITE = "the model's logits are not finite"


@dataclass(frozen=True)
class Drawing:
    """Tokens that are being sampled, and the function that makes results of them on the host.

    Attributes:
        tokens: int32 [n] on the device.
        fetched: tensors to copy to the host for ``outcome``.
        outcome: returns, from these copies, n tokens and n error messages, "" for a valid token.
    """

    tokens: Any
    fetched: list[Any]
    outcome: Callable[[Sequence[Any]], tuple[list[int], list[str]]]


def drawn(tokens: Any, errors: list[str]) -> Drawing:
    """Return a ``Drawing`` of sampled tokens, int32 [n], whose error messages are known."""
    return Drawing(tokens, [tokens], lambda host: (host[0].tolist(), errors))


def mask_bytes(vocab: int) -> int:
    """Return the bytes of a token mask: 1 bit per token id, in whole 32-bit words."""
    return 4 * ((vocab + 31) // 32)


def sized(mask: bytes | int | None, size: int) -> tuple[bytes, str]:
    """Return the mask and ""; for a wrong size, a mask that allows all tokens, and an error."""
    words = mask if isinstance(mask, bytes) else b""
    if len(words) != size:
        return b"\xff" * size, f"the token mask has {len(words)} bytes; {size} are needed"
    return words, ""
