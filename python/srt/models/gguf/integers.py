"""The block formats that native kernels hold as they are: integers of 4 or 8 bits, a scale and
perhaps a lowest value for each group of 32 inputs. Nothing is rounded a second time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from sglang.srt.files.gguf import GgufKind
from sglang.srt.layers.quantised import Quantised
from sglang.srt.models.gguf.quants import (
    CHUNK,
    fields,
    fifth_bits,
    floats,
    half,
    nibbles,
    scales_and_minima,
)
from sglang.srt.numeric.host_arrays import Array

GROUP = 32
# Parts of blocks [N, bytes]: integers [N, values], scales [N, groups], lows [N, groups] or None.
Parts: TypeAlias = tuple[Array, Array, Array | None]


def _q8_0(raw: Array) -> Parts:
    return raw[:, 2:].view(np.int8), half(raw, 0), None


def _q4_0(raw: Array) -> Parts:
    return nibbles(raw[:, 2:]) - 8, half(raw, 0), None


def _q4_1(raw: Array) -> Parts:
    d = half(raw, 0)
    return nibbles(raw[:, 4:]) - 8, d, half(raw, 2) + 8 * d


def _q5_0(raw: Array) -> Parts:
    return nibbles(raw[:, 6:]) + fifth_bits(raw[:, 2:6]) - 16, half(raw, 0), None


def _q5_1(raw: Array) -> Parts:
    return nibbles(raw[:, 8:]) + fifth_bits(raw[:, 4:8]), half(raw, 0), half(raw, 2)


def _q4_k(raw: Array) -> Parts:
    scales, minima = scales_and_minima(raw)
    return floats(fields(raw[:, 16:], 4, 32)) - 8, scales, 8 * scales - minima


def _q5_k(raw: Array) -> Parts:
    scales, minima = scales_and_minima(raw)
    high = fields(raw[:, 16:48], 1, 32) << 4
    return fields(raw[:, 48:], 4, 32) | high, scales, -minima


INTEGERS: dict[str, tuple[int, Callable[[Array], Parts]]] = {
    "Q8_0": (8, _q8_0), "Q4_0": (4, _q4_0), "Q4_1": (4, _q4_1), "Q5_0": (8, _q5_0),
    "Q5_1": (8, _q5_1), "Q4_K": (4, _q4_k), "Q5_K": (8, _q5_k),
}  # fmt: skip


def quantised(raw: Array, rows: int, kind: GgufKind) -> Quantised:
    """A matrix [rows, k] of a format in ``INTEGERS``, whose bytes are ``raw``."""
    bits, parts_of = INTEGERS[kind.name]
    blocks = raw.reshape(-1, kind.size)
    step = max(CHUNK // kind.block, 1)
    values = np.empty((len(blocks), kind.block), np.int8)
    scales, lows = [], []
    for begin in range(0, len(blocks), step):
        with np.errstate(all="ignore"):  # scales may be any float16
            some, scale, low = parts_of(blocks[begin : begin + step])
        values[begin : begin + step] = some
        scales.append(scale)
        if low is not None:
            lows.append(low)
    return Quantised(
        bits, values.reshape(rows, -1), np.concatenate(scales).reshape(rows, -1), GROUP,
        lows=np.concatenate(lows).reshape(rows, -1) if lows else None,
    )  # fmt: skip
