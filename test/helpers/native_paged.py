"""Paged attention of the native kernels, driven sequence by sequence, beside a float64 reference.

A sequence is a matrix qkv of all its tokens and the pages it lies in; sequences may share leading
pages. Pages without an owner hold NaN, and so does everything around the pools.
"""

from __future__ import annotations

from collections.abc import Sequence as Many
from dataclasses import dataclass

import numpy as np
import torch
from sgl_kernel import paged
from torch import Tensor

TYPES = {
    "float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8,
    "float8": torch.float8_e4m3fn,
}  # fmt: skip


@dataclass
class Text:
    """qkv [length, heads.qkv] as it is before rotation, float32; its pages."""

    qkv: Tensor
    pages: list[int]

    def __len__(self) -> int:
        return self.qkv.shape[0]


@dataclass(frozen=True)
class Piece:
    """Tokens [start, end) of a text: a row of a pass."""

    text: Text
    start: int
    end: int


class World:
    def __init__(
        self, heads: paged.Heads, page_size: int, dtype: str = "float32", pages: int = 512,
        turned: int | None = None, gains: bool = False, seed: int = 0, length: int = 4096,
    ) -> None:  # fmt: skip
        self.heads, self.page_size = heads, page_size
        self.random = torch.Generator().manual_seed(seed)
        self.numpy = np.random.default_rng(seed)
        self.free = [int(p) for p in self.numpy.permutation(pages)]
        self.kv = self._pools(pages * page_size, TYPES[dtype])
        turned = heads.dim if turned is None else turned
        angles = torch.arange(length)[:, None] * 10000.0 ** -torch.linspace(0, 1, turned // 2)
        gain = [torch.rand(heads.dim, generator=self.random) + 0.5 for _ in range(2)]
        self.rotary = paged.Rotary(
            angles.cos(), angles.sin(), gain[0] if gains else None, gain[1] if gains else None
        )

    def _pools(self, slots: int, dtype: torch.dtype) -> paged.KV:
        h = self.heads
        nothing = 77 if dtype == torch.int8 else float("nan")
        keys = torch.full((slots, h.kv, h.dim), nothing, dtype=dtype)
        values = torch.full((slots, h.kv, h.value), nothing, dtype=dtype)
        if dtype != torch.int8:
            return self._kv(keys, values)
        return self._kv(keys, values, *(torch.full((slots, h.kv), float("nan")) for _ in range(2)))

    def _kv(self, keys: Tensor, values: Tensor, *scales: Tensor | None) -> paged.KV:
        """Shared values are the beginning of their keys, and so are their scales."""
        if not self.heads.shared:
            return paged.KV(keys, values, *scales)
        return paged.KV(keys, keys[..., : self.heads.value], *scales[:1], *scales[:1])

    def text(self, length: int, like: Text | None = None, shared: int = 0) -> Text:
        """A new text; its first ``shared`` tokens (whole pages) are those of ``like``."""
        assert shared % self.page_size == 0
        qkv = torch.randn(length, self.heads.qkv, generator=self.random)
        pages: list[int] = []
        if like is not None:
            qkv[:shared] = like.qkv[:shared]
            pages = like.pages[: shared // self.page_size]
        while len(pages) * self.page_size < length:
            pages.append(self.free.pop())
        return Text(qkv, pages)

    def run(self, pieces: Many[Piece], threads: int = 1, apart: bool = False) -> list[Tensor]:
        """Attention outputs of each piece, in one pass. ``apart``: rows get copies of their pages,
        so that none are shared."""
        starts = np.array([p.start for p in pieces], np.int32)
        counts = np.array([p.end - p.start for p in pieces], np.int32)
        lengths = [-(-p.end // self.page_size) for p in pieces]
        tables = np.cumsum([0, *lengths], dtype=np.int32)
        pages = np.concatenate([np.array(p.text.pages[:n], np.int32) for p, n in
                                zip(pieces, lengths)])  # fmt: skip
        positions = np.concatenate([np.arange(p.start, p.end, dtype=np.int32) for p in pieces])
        pass_ = paged.Pass(
            np.zeros_like(positions), positions, starts, counts, tables, pages, self.page_size
        )
        qkv = torch.cat([p.text.qkv[p.start : p.end] for p in pieces])
        wide = torch.full((qkv.shape[0], qkv.shape[1] + 24), float("nan"))
        wide[:, :-24] = qkv
        paged.append(pass_, self.heads, self.rotary, wide[:, :-24], self.kv, threads)
        kv = self.kv
        if apart:
            order = np.arange(len(pages), dtype=np.int32)
            pass_ = paged.Pass(
                np.zeros_like(positions), positions, starts, counts, tables, order, self.page_size
            )
            kv = self._copied(pages)
        out = paged.attend(pass_, self.heads, wide[:, :-24], kv, threads)
        assert wide[:, -24:].isnan().all()
        return list(out.split(counts.tolist()))

    def _copied(self, pages: np.ndarray) -> paged.KV:
        size = self.page_size
        slots = (pages[:, None] * size + np.arange(size)).ravel()
        scales = (
            None if p is None else p[slots] for p in (self.kv.key_scales, self.kv.value_scales)
        )
        return self._kv(self.kv.keys[slots], self.kv.values[slots], *scales)

    # ---- the reference ---------------------------------------------------------------------------

    def rotated(self, x: Tensor, gain: Tensor | None) -> Tensor:
        """x [length, heads, dim] in float64 after norm and rotation."""
        x = x.double()
        if gain is not None:
            norm = x.pow(2).mean(-1, keepdim=True).add(self.rotary.eps).rsqrt()
            x = x * norm * gain.double()
        half = self.rotary.cos.shape[1]
        cos, sin = (t[: len(x), None].double() for t in (self.rotary.cos, self.rotary.sin))
        a, b, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1)

    def parts(self, text: Text) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v [length, heads, dim or value] in float64, q and k rotated."""
        h = self.heads
        q, k, v = text.qkv.tensor_split([h.q * h.dim, (h.q + h.kv) * h.dim], -1)
        q, k = (x.unflatten(-1, (-1, h.dim)) for x in (q, k))
        q, k = self.rotated(q, self.rotary.q_gain), self.rotated(k, self.rotary.k_gain)
        if h.shared:
            return q, k, k[..., : h.value]
        return q, k, v.unflatten(-1, (-1, h.value)).double()

    def expected(self, text: Text, stored: bool = False) -> Tensor:
        """Attention of all tokens [length, q * value] by brute force; ``stored``: over keys and
        values as the pools have them."""
        h, n = self.heads, len(text)
        q, k, v = self.parts(text)
        if stored:
            k, v = self.stored(text)
        k, v = (x.repeat_interleave(h.q // h.kv, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * h.scale
        if h.soft_cap:
            scores = h.soft_cap * (scores / h.soft_cap).tanh()
        distance = torch.arange(n)[:, None] - torch.arange(n)
        seen = (distance >= 0) & ((distance < h.window) if h.window else True)
        scores = scores.masked_fill(~seen, float("-inf"))
        if h.sinks is not None:
            scores = torch.cat([scores, h.sinks.double().view(-1, 1, 1).expand(-1, n, 1)], -1)
        weights = scores.softmax(-1)[..., :n]
        return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)

    def stored(self, text: Text) -> tuple[Tensor, Tensor]:
        """Keys and values [length, kv, dim or value] of the pools, as float64."""
        place = torch.arange(len(text))
        slots = torch.tensor(text.pages)[place // self.page_size] * self.page_size
        slots += place % self.page_size
        keys, values = self.kv.keys[slots].double(), self.kv.values[slots].double()
        if self.kv.key_scales is not None and self.kv.value_scales is not None:
            keys *= self.kv.key_scales[slots].double()[..., None]
            values *= self.kv.value_scales[slots].double()[..., None]
        return keys, values


def error(got: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest value of its row."""
    scale = expected.abs().amax(-1, keepdim=True).clamp(min=1e-30)
    return float(((got.double() - expected).abs() / scale).max())
