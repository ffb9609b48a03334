"""Rotary position embedding (RoFormer, Su et al. 2021) and scalings for longer contexts.

Each variant is a function that returns the inverse frequencies and a factor on cosine and sine.
Frequencies are [dim / 2], or [length, dim / 2] if they depend on the position.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from sglang.srt.numeric.host_arrays import Array
from sglang.srt.numeric.torch_later import Tensor, torch

Angles: TypeAlias = tuple[Tensor, Tensor]
ROWS = 1 << 12  # positions whose float64 angles are in memory at once


class AngleRows(NamedTuple):
    """Cosines and signed sines of T tokens, not gathered. Token t has row ``rows[t]``, int32, of
    ``table`` [rows, 2, 1, turned]."""

    table: Tensor
    rows: Tensor


@dataclass(frozen=True)
class Rope:
    """Settings of a rotary embedding, named as in a checkpoint's ``rope_parameters``.

    ``original_length``: context length of the pre-training. ``max_length``: context length that the
    configuration declares. ``partial``: fraction of a head's dimensions that is rotated.
    """

    type: str = "default"
    theta: float = 10000.0
    factor: float = 1.0
    max_length: int = 0
    original_length: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float = 0.0
    mscale_all_dim: float = 0.0
    truncate: bool = True
    short_factor: tuple[float, ...] = ()
    long_factor: tuple[float, ...] = ()
    partial: float = 1.0

    def turned(self, head_dim: int) -> int:
        """Return the number of rotated dimensions, which are a head's first ones."""
        return int(head_dim * self.partial)

    @property
    def length(self) -> int:
        """Longest sequence that the scaling is meant for, in tokens."""
        if self.type in ("linear", "dynamic"):
            return int(self.max_length * self.factor)
        if self.type == "yarn":
            return max(self.max_length, int(self.original_length * self.factor))
        return self.max_length


def _exponents(dim: int) -> Array:
    return np.arange(0, dim, 2, dtype=np.float64) / dim


def default(rope: Rope, dim: int, length: int) -> tuple[Array, float]:
    return 1.0 / rope.theta ** _exponents(dim), 1.0


def linear(rope: Rope, dim: int, length: int) -> tuple[Array, float]:
    """Position interpolation (Chen et al. 2023): positions divided by the factor."""
    inverse, scale = default(rope, dim, length)
    return inverse / rope.factor, scale


def dynamic(rope: Rope, dim: int, length: int) -> tuple[Array, float]:
    """NTK-aware base that grows with the sequence.

    A token at position ``p`` is rotated with the base of a sequence that ends at ``p``, as if the
    prompt were computed token by token. If a prompt longer than ``max_length`` used its last
    token's base for all tokens, the keys of a prefix would depend on later tokens, and requests
    could not share them.
    """
    reach = np.maximum(np.arange(1, length + 1, dtype=np.float64), rope.max_length)[:, None]
    stretch = rope.factor * reach / rope.max_length - (rope.factor - 1)
    base = rope.theta * stretch ** (dim / (dim - 2))
    return 1.0 / base ** _exponents(dim), 1.0


def yarn(rope: Rope, dim: int, length: int) -> tuple[Array, float]:
    """YaRN (Peng et al. 2023, section 3): slow dimensions are interpolated, fast ones kept."""

    def dimension(rotations: float) -> float:
        # The dimension that rotates `rotations` times over the original length.
        turns = math.log(rope.original_length / (rotations * 2 * math.pi))
        return dim * turns / (2 * math.log(rope.theta))

    def magnitude(weight: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * weight * math.log(rope.factor) + 1.0

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001
    interpolate = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    inverse, _ = default(rope, dim, length)
    inverse = inverse / rope.factor * interpolate + inverse * (1 - interpolate)
    if rope.attention_factor is not None:
        return inverse, rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return inverse, magnitude(rope.mscale) / magnitude(rope.mscale_all_dim)
    return inverse, magnitude(1.0)


def llama3(rope: Rope, dim: int, length: int) -> tuple[Array, float]:
    """Llama 3.1: frequencies of long wavelengths are divided by the factor, medium ones blended."""
    inverse, scale = default(rope, dim, length)
    turns = rope.original_length * inverse / (2 * math.pi)
    span = rope.high_freq_factor - rope.low_freq_factor
    keep = np.clip((turns - rope.low_freq_factor) / span, 0, 1)
    return inverse / rope.factor * (1 - keep) + inverse * keep, scale


def longrope(rope: Rope, dim: int, length: int) -> tuple[Array, float]:
    """LongRoPE (Ding et al. 2024): each pair of dimensions has a factor that slows its rotation.
    One list of factors is for texts up to the original length, another for longer texts.

    The served context length selects the list for all requests, so that the keys of a prefix do not
    depend on later tokens. A choice by each token's position, as in ``dynamic``, would rotate a
    query by one list and its keys by the other, whose factors are many times larger. Their relative
    angle would then not depend on the distance alone.
    """
    long = length > rope.original_length
    inverse, _ = default(rope, dim, length)
    inverse = inverse / np.array(rope.long_factor if long else rope.short_factor)
    if rope.attention_factor is not None:
        return inverse, rope.attention_factor
    if rope.factor <= 1:
        return inverse, 1.0
    return inverse, math.sqrt(1 + math.log(rope.factor) / math.log(rope.original_length))


VARIANTS: dict[str, Callable[[Rope, int, int], tuple[Array, float]]] = {
    "default": default,
    "linear": linear,
    "dynamic": dynamic,
    "yarn": yarn,
    "llama3": llama3,
    "longrope": longrope,
}


class Rotary:
    """Cosines and sines of all positions up to ``length``, and the rotation itself.

    Values are computed in float64 and rounded once, so that all backends have the same bits.
    Dimensions ``i`` and ``i + turned / 2`` are rotated together, as in most HF checkpoints (see
    ``from_pairs`` for the other layout). Dimensions from ``turned`` on are not rotated.
    """

    def __init__(self, rope: Rope, head_dim: int, length: int, dtype: Any, device: Any) -> None:
        """``dtype``, ``device``: of ``table``, which passes by torch read."""
        self.rope, self.length = rope, length
        self.turned = rope.turned(head_dim)
        self.half = self.turned // 2
        self.dtype, self.device = dtype, device

    def angles(self) -> tuple[Array, Array]:
        """Return cosines and sines, float32 [length, turned / 2] each."""
        inverse, scale = VARIANTS[self.rope.type](self.rope, self.turned, self.length)
        each = np.broadcast_to(inverse, (self.length, self.half))
        cos, sin = (np.empty((self.length, self.half), np.float32) for _ in range(2))
        for first in range(0, self.length, ROWS):
            rows = slice(first, first + ROWS)
            positions = np.arange(self.length, dtype=np.float64)[rows, None]
            angles = positions * each[rows]
            cos[rows], sin[rows] = np.cos(angles) * scale, np.sin(angles) * scale
        return cos, sin

    @cached_property
    def table(self) -> Tensor:
        """Tensor [length, 2, 1, turned]: cosines, and sines that include the rotation's sign."""
        cos, sin = map(torch.from_numpy, self.angles())
        table = torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], dim=1)
        return table.unsqueeze(2).to(self.device, self.dtype)

    def at(self, positions: Tensor) -> Angles:
        """Return the cosines and signed sines of positions [T], each [T, 1, turned]."""
        cos, sin = self.table.index_select(0, positions).unbind(1)
        return cos, sin

    def rows(self, positions: Tensor) -> AngleRows:
        """Return references to the rows of ``table`` for positions, int32 [T]."""
        return AngleRows(self.table, positions)

    def rotate(self, x: Tensor, angles: Angles) -> Tensor:
        """Return x [T, heads, head_dim] with every head rotated, as a new tensor."""
        cos, sin = angles
        if self.turned == x.shape[-1]:
            return (x * cos).addcmul_(x.roll(self.half, -1), sin)
        turning, still = x.split_with_sizes((self.turned, x.shape[-1] - self.turned), -1)
        return torch.cat([(turning * cos).addcmul_(turning.roll(self.half, -1), sin), still], -1)


def from_pairs(rows: Array, head_dim: int, turned: int) -> Array:
    """Reorder the rows [heads * head_dim, ...] of a projection from a layout that rotates outputs
    ``2 i`` and ``2 i + 1`` together to one that rotates ``i`` and ``i + turned / 2``. Products of
    queries and keys do not change, because both are reordered alike."""
    order = np.arange(head_dim)
    order[:turned] = order[:turned].reshape(-1, 2).T.reshape(-1)
    heads = rows.reshape(-1, head_dim, *rows.shape[1:])
    found: Array = heads[:, order].reshape(rows.shape)
    return found


class SectionedRotary(Rotary):
    """Rotary embedding in sections (M-RoPE; Qwen2-VL, Wang et al. 2024, section 2.1).

    ``sections``: numbers of a head's pairs of dimensions that are rotated by a token's time, by its
    height and by its width, in this order.
    """

    def __init__(
        self,
        rope: Rope,
        sections: tuple[int, int, int],
        length: int,
        dtype: Any,
        device: Any,
    ) -> None:
        super().__init__(rope, 2 * sum(sections), length, dtype, device)
        self.sections = sections

    def at(self, positions: Tensor) -> Angles:
        """See ``Rotary.at``. ``positions``: [3, T], or [T] if all three parts are the same."""
        if positions.ndim == 1:
            return super().at(positions)
        cos, sin = self._gathered(positions).unbind(1)
        return cos, sin

    def rows(self, positions: Tensor) -> AngleRows:
        """See ``Rotary.rows``. ``positions``: [3, T], or [T] if all three parts are the same."""
        if positions.ndim == 1:
            return super().rows(positions)
        count, device = positions.shape[1], positions.device
        rows = torch.arange(count, dtype=torch.int32, device=device)
        return AngleRows(self._gathered(positions), rows)

    def _gathered(self, positions: Tensor) -> Tensor:
        """Return [T, 2, 1, turned]: for each token, sections of its three positions' rows."""
        tokens = positions.shape[1]
        rows = self.table.index_select(0, positions.flatten()).unflatten(0, (3, tokens))
        # The two dimensions of a pair are half a head apart, so each half has all sections.
        parts = rows.split_with_sizes(self.sections * 2, dim=-1)
        return torch.cat([part[i % 3] for i, part in enumerate(parts)], dim=-1)
