"""GGML's block formats, dequantised.

A tensor's rows are cut into blocks, stored one after the other. In the tables below d and m are
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

import numpy as np
from sglang.srt.files.gguf import GgufKind
from sglang.srt.numeric.host_arrays import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, Array

CHUNK = 1 << 20  # values dequantised at a time: temporaries stay small
_IQ4 = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # e2m1, doubled


def floats(x: Array) -> Array:
    return x.astype(np.float32)


def half(raw: Array, at: int) -> Array:
    """The float16 at byte ``at`` of each block, [N, 1]."""
    return floats(np.ascontiguousarray(raw[:, at : at + 2]).view(np.float16))


def nibbles(raw: Array) -> Array:
    """[N, b] bytes -> [N, 2 b]: the low halves, then the high ones."""
    return floats(np.concatenate([raw & 15, raw >> 4], axis=1))


def fields(raw: Array, width: int, span: int) -> Array:
    """[N, b] bytes -> [N, b * 8 / width]: of each ``span`` bytes first all lowest fields of
    ``width`` bits, then the next ones."""
    shifts = np.arange(0, 8, width, dtype=np.uint8).reshape(1, 1, -1, 1)
    parts = raw.reshape(len(raw), -1, 1, span) >> shifts
    return (parts & ((1 << width) - 1)).reshape(len(raw), -1)


def fifth_bits(raw: Array) -> Array:
    """[N, 4] bytes, a mask of 32 bits -> [N, 32], 16 where set."""
    bits = raw[..., None] >> np.arange(8, dtype=np.uint8)
    return floats(((bits & 1) << 4).reshape(len(raw), 32))


def q8_0(raw: Array) -> Array:
    return half(raw, 0) * floats(raw[:, 2:].view(np.int8))


def q4_0(raw: Array) -> Array:
    found: Array = half(raw, 0) * (nibbles(raw[:, 2:]) - 8)
    return found


def q4_1(raw: Array) -> Array:
    return half(raw, 0) * nibbles(raw[:, 4:]) + half(raw, 2)


def q5_0(raw: Array) -> Array:
    found: Array = half(raw, 0) * (nibbles(raw[:, 6:]) + fifth_bits(raw[:, 2:6]) - 16)
    return found


def q5_1(raw: Array) -> Array:
    values = nibbles(raw[:, 8:]) + fifth_bits(raw[:, 4:8])
    found: Array = half(raw, 0) * values + half(raw, 2)
    return found


def iq4_nl(raw: Array) -> Array:
    table = np.array(_IQ4, dtype=np.float32)
    return half(raw, 0) * table[nibbles(raw[:, 2:]).astype(np.intp)]


def mxfp4(raw: Array) -> Array:
    table = np.array(_FP4, dtype=np.float32)
    # The values are doubled, so the exponent is one less: 2^(e - 127) / 2.
    scale = np.ldexp(np.float32(1), raw[:, :1].astype(np.int32) - 128)
    found: Array = scale * table[nibbles(raw[:, 1:]).astype(np.intp)]
    return found


def q2_k(raw: Array) -> Array:
    scales, count = raw[:, :16], len(raw)
    d, m = half(raw, 80) * floats(scales & 15), half(raw, 82) * floats(scales >> 4)
    values = floats(fields(raw[:, 16:80], 2, 32)).reshape(count, 16, 16)
    found: Array = (d[..., None] * values - m[..., None]).reshape(count, 256)
    return found


def q3_k(raw: Array) -> Array:
    count = len(raw)
    # A set bit of the mask means that 4 is not taken off.
    high = floats(fields(raw[:, :32], 1, 32)) * 4
    values = floats(fields(raw[:, 32:96], 2, 32)) + high - 4
    packed = raw[:, 96:108]
    low = np.concatenate([packed[:, :8] & 15, packed[:, :8] >> 4], axis=1)
    scales = floats(low | fields(packed[:, 8:], 2, 4) << 4) - 32
    d = half(raw, 108) * scales
    found: Array = (d[..., None] * values.reshape(count, 16, 16)).reshape(count, 256)
    return found


def scales_and_minima(raw: Array) -> tuple[Array, Array]:
    """Scales and minima of the eight parts of Q4_K's and Q5_K's blocks, each [N, 8]."""
    a, b, c = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = np.concatenate([a & 63, (c & 15) | (a >> 6 << 4)], axis=1)
    minima = np.concatenate([b & 63, (c >> 4) | (b >> 6 << 4)], axis=1)
    return half(raw, 0) * floats(scales), half(raw, 2) * floats(minima)


def _scaled_parts(raw: Array, values: Array) -> Array:
    """Q4_K's and Q5_K's blocks of which the integers [N, 256] are known."""
    d, m = scales_and_minima(raw)
    parts = values.reshape(len(raw), 8, 32)
    return (d[..., None] * parts - m[..., None]).reshape(len(raw), 256)


def q4_k(raw: Array) -> Array:
    return _scaled_parts(raw, floats(fields(raw[:, 16:], 4, 32)))


def q5_k(raw: Array) -> Array:
    high = fields(raw[:, 16:48], 1, 32) << 4
    return _scaled_parts(raw, floats(fields(raw[:, 48:], 4, 32) | high))


def q6_k(raw: Array) -> Array:
    count = len(raw)
    low = fields(raw[:, :128], 4, 64)
    high = fields(raw[:, 128:192], 2, 32) << 4
    values = floats(low | high).reshape(count, 16, 16) - 32
    scales = floats(raw[:, 192:208].view(np.int8))
    d = half(raw, 208) * scales
    found: Array = (d[..., None] * values).reshape(count, 256)
    return found


FORMATS: dict[str, Callable[[Array], Array]] = {
    "Q8_0": q8_0, "Q4_0": q4_0, "Q4_1": q4_1, "Q5_0": q5_0, "Q5_1": q5_1, "IQ4_NL": iq4_nl,
    "MXFP4": mxfp4, "Q2_K": q2_k, "Q3_K": q3_k, "Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k,
}  # fmt: skip
FLOATS = {
    "F32": FLOAT32, "F16": FLOAT16, "BF16": BFLOAT16, "F64": FLOAT64,
}  # fmt: skip
READABLE = (*FLOATS, *FORMATS)


def dequantise(raw: Array, kind: GgufKind) -> Array:
    """Bytes [N, row bytes] of a format in ``FORMATS`` -> float32 [N, row values]."""
    rows, blocks = raw.shape[0], raw.shape[1] // kind.size
    raw = raw.reshape(rows * blocks, kind.size)
    out = np.empty((len(raw), kind.block), np.float32)
    step = max(CHUNK // kind.block, 1)
    with np.errstate(all="ignore"):  # scales may be any float16
        for begin in range(0, len(raw), step):
            out[begin : begin + step] = FORMATS[kind.name](raw[begin : begin + step])
    return out.reshape(rows, blocks * kind.block)
