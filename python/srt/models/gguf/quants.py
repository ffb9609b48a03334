"""GGML's block formats, dequantised.

A tensor's rows are cut into blocks, stored one behind the other. In the tables below d and m are
float16 scales of a block, q unsigned integers of some bits, and s, t small integers that scale
parts of a block (the "K" formats, blocks of 256):

    Q8_0  d q       32 of 8 bits, signed    x = d q
    Q4_0  d q       32 of 4 bits            x = d (q - 8)         Q4_1  d m q   x = d q + m
    Q5_0  d h q     32 of 5 bits            x = d (q - 16)        Q5_1  d m h q
    IQ4_NL d q      32 of 4 bits            x = d table[q]        MXFP4 (an exponent for d)
    Q2_K  st q d m       16 parts of 16     x = d s q - m t
    Q3_K  h q s d        16 parts of 16     x = d s (q - 4)
    Q4_K  d m st q        8 parts of 32     x = d s q - m t       Q5_K  d m st h q
    Q6_K  q h s d        16 parts of 16     x = d s (q - 32)

h holds the highest bits of q apart from the rest. Every function takes blocks [N, bytes] as uint8
and returns their values [N, values] as float32; the arithmetic is that of GGML's reference.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from sglang.srt.files.gguf import GgufKind
from torch import Tensor

CHUNK = 1 << 20  # values dequantised at a time: temporaries stay small
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # e2m1, doubled


def half(raw: Tensor, at: int) -> Tensor:
    """The float16 at byte ``at`` of each block, [N, 1]."""
    return raw[:, at : at + 2].contiguous().view(torch.float16).float()


def nibbles(raw: Tensor) -> Tensor:
    """[N, b] bytes -> [N, 2 b]: the low halves, then the high ones."""
    return torch.cat([raw & 15, raw >> 4], dim=1).float()


def fields(raw: Tensor, width: int, span: int) -> Tensor:
    """[N, b] bytes -> [N, b * 8 / width]: of each ``span`` bytes first all lowest fields of
    ``width`` bits, then the next ones."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8).view(1, 1, -1, 1)
    parts = raw.view(len(raw), -1, 1, span) >> shifts
    return (parts & ((1 << width) - 1)).reshape(len(raw), -1)


def fifth_bits(raw: Tensor) -> Tensor:
    """[N, 4] bytes, a mask of 32 bits -> [N, 32], 16 where set."""
    bits = raw.unsqueeze(-1) >> torch.arange(8, dtype=torch.uint8)
    return ((bits & 1) << 4).reshape(len(raw), 32).float()


def q8_0(raw: Tensor) -> Tensor:
    return half(raw, 0) * raw[:, 2:].contiguous().view(torch.int8).float()


def q4_0(raw: Tensor) -> Tensor:
    return half(raw, 0) * (nibbles(raw[:, 2:]) - 8)


def q4_1(raw: Tensor) -> Tensor:
    return half(raw, 0) * nibbles(raw[:, 4:]) + half(raw, 2)


def q5_0(raw: Tensor) -> Tensor:
    return half(raw, 0) * (nibbles(raw[:, 6:]) + fifth_bits(raw[:, 2:6]) - 16)


def q5_1(raw: Tensor) -> Tensor:
    values = nibbles(raw[:, 8:]) + fifth_bits(raw[:, 4:8])
    return half(raw, 0) * values + half(raw, 2)


def iq4_nl(raw: Tensor) -> Tensor:
    table = torch.tensor(_IQ4, dtype=torch.float32)
    return half(raw, 0) * table[nibbles(raw[:, 2:]).int()]


def mxfp4(raw: Tensor) -> Tensor:
    table = torch.tensor(_FP4, dtype=torch.float32)
    # The values are doubled, so the exponent is one less: 2^(e - 127) / 2.
    scale = torch.ldexp(torch.ones(len(raw), 1), raw[:, :1].int() - 128)
    return scale * table[nibbles(raw[:, 1:]).int()]


def q2_k(raw: Tensor) -> Tensor:
    scales, count = raw[:, :16], len(raw)
    d, m = half(raw, 80) * (scales & 15).float(), half(raw, 82) * (scales >> 4).float()
    values = fields(raw[:, 16:80].contiguous(), 2, 32).float().view(count, 16, 16)
    return (d.unsqueeze(-1) * values - m.unsqueeze(-1)).reshape(count, 256)


def q3_k(raw: Tensor) -> Tensor:
    count = len(raw)
    # A set bit of the mask means that 4 is not taken off.
    high = fields(raw[:, :32].contiguous(), 1, 32).float() * 4
    values = fields(raw[:, 32:96].contiguous(), 2, 32).float() + high - 4
    packed = raw[:, 96:108]
    low = torch.cat([packed[:, :8] & 15, packed[:, :8] >> 4], dim=1)
    scales = (low | fields(packed[:, 8:].contiguous(), 2, 4) << 4).float() - 32
    d = half(raw, 108) * scales
    return (d.unsqueeze(-1) * values.view(count, 16, 16)).reshape(count, 256)


def scales_and_minima(raw: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima of the eight parts of Q4_K's and Q5_K's blocks, each [N, 8]."""
    a, b, c = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = torch.cat([a & 63, (c & 15) | (a >> 6 << 4)], dim=1)
    minima = torch.cat([b & 63, (c >> 4) | (b >> 6 << 4)], dim=1)
    return half(raw, 0) * scales.float(), half(raw, 2) * minima.float()


def _scaled_parts(raw: Tensor, values: Tensor) -> Tensor:
    """Q4_K's and Q5_K's blocks of which the integers [N, 256] are known."""
    d, m = scales_and_minima(raw)
    parts = values.view(len(raw), 8, 32)
    return (d.unsqueeze(-1) * parts - m.unsqueeze(-1)).reshape(len(raw), 256)


def q4_k(raw: Tensor) -> Tensor:
    return _scaled_parts(raw, fields(raw[:, 16:].contiguous(), 4, 32).float())


def q5_k(raw: Tensor) -> Tensor:
    high = fields(raw[:, 16:48].contiguous(), 1, 32) << 4
    return _scaled_parts(raw, (fields(raw[:, 48:].contiguous(), 4, 32) | high).float())


def q6_k(raw: Tensor) -> Tensor:
    count = len(raw)
    low = fields(raw[:, :128].contiguous(), 4, 64)
    high = fields(raw[:, 128:192].contiguous(), 2, 32) << 4
    values = (low | high).float().view(count, 16, 16) - 32
    scales = raw[:, 192:208].contiguous().view(torch.int8).float()
    d = half(raw, 208) * scales
    return (d.unsqueeze(-1) * values).reshape(count, 256)


FORMATS: dict[str, Callable[[Tensor], Tensor]] = {
    "Q8_0": q8_0, "Q4_0": q4_0, "Q4_1": q4_1, "Q5_0": q5_0, "Q5_1": q5_1, "IQ4_NL": iq4_nl,
    "MXFP4": mxfp4, "Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k,
}  # fmt: skip
FLOATS = {
    "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64,
}  # fmt: skip
READABLE = (*FLOATS, *FORMATS)


def dequantise(raw: Tensor, kind: GgufKind) -> Tensor:
    """Bytes [N, row bytes] of a format in ``FORMATS`` -> float32 [N, row values]."""
    rows, blocks = raw.shape[0], raw.shape[1] // kind.size
    raw = raw.view(rows * blocks, kind.size)
    out = torch.empty(len(raw), kind.block)
    step = max(CHUNK // kind.block, 1)
    for begin in range(0, len(raw), step):
        out[begin : begin + step] = FORMATS[kind.name](raw[begin : begin + step])
    return out.view(rows, blocks * kind.block)
